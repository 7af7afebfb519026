"""Metrics under ModelMesh's names: of an instance that its variables configure, and of a server with a flag."""

from __future__ import annotations

import re
import socket
import ssl
import urllib.error
import urllib.request

import pytest

from harness.examples import EXAMPLES
from harness.ports import free_port
from harness.waiting import PATIENCE, until
from test_modelmesh_behaviour import MIB, start  # noqa: F401: the fixture
from test_modelmesh_instances import PREDICT, store  # noqa: F401: the fixture

# The queries of ModelMesh's Grafana dashboard, without those about containers, ask for these.
DASHBOARD = """
age_at_eviction_milliseconds_count age_at_eviction_milliseconds_sum api_request_milliseconds_count api_request_milliseconds_sum
cache_miss_milliseconds_count cache_miss_milliseconds_sum instance_capacity_bytes instance_lru_age_seconds instance_models_total
instance_used_bytes invoke_model_milliseconds_count invoke_model_milliseconds_sum loaded_model_size_bytes_count
loaded_model_size_bytes_sum loadmodel_failure loadmodel_milliseconds_count loadmodel_milliseconds_sum model_sizing_milliseconds_count
model_sizing_milliseconds_sum models_loaded_total models_managed_total models_with_failure_total req_queue_delay_milliseconds_count
req_queue_delay_milliseconds_sum request_size_bytes_count request_size_bytes_sum response_size_bytes_count response_size_bytes_sum
unloadmodel_milliseconds_count
""".split()


def scrape(url: str, token: str | None = None) -> dict[str, float]:
    """Samples by name and labels; the labels in the order of their names."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=10, context=unchecked if url.startswith("https") else None) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    samples = {}
    for line in lines:
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name, _, labels = series.partition("{")
            pairs = sorted(re.findall(r'(\w+)="([^"]*)"', labels))
            samples[" ".join([name.removeprefix("modelmesh_"), *(f"{key}={value}" for key, value in pairs)])] = float(value)
    return samples


def test_an_instance_has_the_metrics_of_modelmeshs_dashboard(start):  # noqa: F811
    port = free_port()
    env = {
        "MM_METRICS": f"prometheus:port={port};scheme=https;per_model_metrics=true",
        "MM_INFO_METRICS": "assistant_info:relabel;slot=SLOT,group=GROUP",
        "SLOT": "ga",
        "GROUP": "clu",
    }
    one = start(env=env)
    one.register("myModel", f"SIZE_{100 * MIB}_20")
    one.register("broken", "FAIL_no such bucket")
    for length, times in ((12, 30), (2_000_000, 10)):
        for _ in range(times):
            assert one.call(PREDICT, b"x" * length, ("mm-model-id", "myModel"))[1] == "myModel"
    assert one.call(PREDICT, b"x", ("mm-model-id", "myModel"), ("testing", "error=DATA_LOSS:gone")) == "DATA_LOSS"

    # The cluster's gauges are as they were at the last look.
    until("the gauges", lambda: scrape(f"https://127.0.0.1:{port}").get("models_managed_total") == 2)
    samples = scrape(f"https://127.0.0.1:{port}")
    names = {name.split(" ")[0] for name in samples}
    assert not [name for name in DASHBOARD if name not in names and not name.startswith("cache_miss")]
    labels = "code=OK {} method=predict modelId=myModel vModelId="
    assert samples["api_request_milliseconds_bucket " + labels.format("le=300000.0")] == 40
    assert samples["invoke_model_milliseconds_count " + labels.format("").replace("  ", " ")] == 40
    assert samples["request_size_bytes_bucket " + labels.format("le=128.0")] == 30, "bytes of messages, without their frames"
    assert samples["request_size_bytes_sum " + labels.format("").replace("  ", " ")] == 30 * 12 + 10 * 2_000_000
    assert samples["api_request_milliseconds_count code=DATA_LOSS method=predict modelId=myModel vModelId="] == 1
    assert samples["loaded_model_size_bytes_bucket le=67108864"] == 0
    assert samples["loaded_model_size_bytes_bucket le=268435456"] == 1
    assert samples["instance_models_total"] == 1
    assert samples["loadmodel_failure"] >= 1
    assert samples["assistant_info:relabel group=clu slot=ga"] == 1


def test_a_server_has_them_with_a_flag_and_asks_for_a_token_where_it_asks_for_one(berth, tmp_path):
    port = free_port()
    berth.start(f"--modelmesh-metrics=prometheus:port={port};scheme=http", "--auth", "tokens", models=EXAMPLES)
    token = (tmp_path / "data" / "admin.token").read_text().strip()
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(f"http://127.0.0.1:{port}")
    assert refused.value.code == 401
    samples = scrape(f"http://127.0.0.1:{port}", token)
    assert samples["models_managed_total"] >= 0 and samples["instance_capacity_bytes"] > 0


def test_a_server_sends_them_to_statsd(berth):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(PATIENCE)
        berth.start(f"--modelmesh-metrics=statsd:port={server.getsockname()[1]}", models=EXAMPLES).available("iris")
        assert [berth.infer("iris")[0] for _ in range(3)] == [200] * 3
        lines: list[str] = []
        counted = "modelmesh_api_request_statsd#method=infer,code=OK:3|c"
        while counted not in lines:
            lines += server.recv(65536).decode().splitlines()
        timed = [line for line in lines if line.startswith("modelmesh_api_request_milliseconds_statsd#method=infer,code=OK:")]
        assert sum(round(1 / float(line.partition("|@")[2] or 1)) for line in timed) == 3, timed
        assert any(re.fullmatch(r"modelmesh_instance_capacity_bytes_statsd:\d+\|g", line) for line in lines), lines
