"""The command line as a new user types it."""

import contextlib
import json
import os
import re
import subprocess
import threading

import pytest

from harness.examples import ARTIFACTS, EXAMPLES, manifest
from harness.processes import BERTH
from harness.waiting import PATIENCE, until


def test_get_lists_and_formats(shared):
    table = shared.run("get", "deployments")
    assert "iris" in table and "Available" in table
    assert "worker" in shared.run("get", "deployments", "-o", "wide").lower()
    listed = json.loads(shared.run("get", "deployments", "-o", "json"))
    iris = next(item for item in listed["items"] if item["metadata"]["name"] == "iris")
    assert iris["status"]["replicas"] == {"desired": 1, "ready": 1}
    assert iris["status"]["observedGeneration"] == iris["metadata"]["generation"] == 1
    assert {"type", "status", "reason", "message"} <= iris["status"]["conditions"][0].keys()
    assert json.loads(shared.run("get", "deployment", "iris", "-o", "json"))["metadata"] == iris["metadata"]
    assert "kind: ModelDeployment" in shared.run("get", "deployment", "iris", "-o", "yaml")
    alias = {"apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "flowers"}, "spec": {"targets": [{"deployment": "iris"}]}}
    shared.apply(alias)
    for kind in ("workers", "replicas", "revisions", "aliases", "events"):
        assert shared.run("get", kind).strip(), kind
        assert json.loads(shared.run("get", kind, "-o", "json"))["items"], kind
    shared.run("delete", "alias/flowers")


def test_describe_and_explain(shared):
    described = shared.run("describe", "deployment", "iris")
    for word in ("iris", "Available", "onnx", "priority", "Events"):
        assert word.lower() in described.lower(), word
    explained = shared.run("explain", "iris")
    assert "MiB" in explained or "KiB" in explained


def test_infer_over_both_protocols(shared):
    request = str(ARTIFACTS / "iris.json")
    for protocol in ([], ["--grpc"]):
        answer = shared.run("infer", "iris", "-f", request, *protocol)
        assert "label" in answer
    figures = shared.run("infer", "iris", "-f", request, "--repeat", "200", "--concurrency", "4")
    assert "p99" in figures + shared.stderr


def test_top_once(shared):
    assert "iris" in shared.run("top", "--once")


def test_errors_suggest(shared):
    shared.run("get", "deployment", "irsi", code=3)
    assert "iris" in shared.stderr
    shared.run("get", "deploymints", code=3)
    assert "deployments" in shared.stderr
    shared.run("infer", "nobody", "-f", str(ARTIFACTS / "iris.json"), code=3)
    shared.run("wait", "deployment/diabetes", "--for=Ready=1", code=2)
    shared.run("wait", "deployment/diabetes", "--for=Available", "--timeout=1s", code=5)


def test_plan_changes_nothing(shared):
    change = manifest("iris", "iris-v2")

    def declared() -> tuple:
        """Without what requests move: how many there were is told some time after them."""
        iris = shared.deployment("iris")
        return iris["metadata"], iris["spec"], iris["status"]["revision"], iris["status"]["replicas"]

    before = declared()
    planned = shared.run("plan", "-f", "-", stdin=json.dumps(change))
    assert "iris" in planned and ("load" in planned.lower())
    assert declared() == before


def test_apply_from_folder_and_delete(berth, tmp_path):
    berth.start()
    folder = tmp_path / "manifests"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps(manifest(name)))
    assert berth.run("apply", "-f", str(folder)).count("created") == 2
    berth.available("one", "two")
    berth.run("delete", "deployment", "one")
    until("one to be gone", lambda: berth.get("/v2/models/one")[0] == 404)
    berth.run("get", "deployment", "one", code=3)
    berth.run("delete", "deployment", "one", code=3)


def test_validate_points_at_the_place(berth, tmp_path):
    assert berth.run("validate", "-f", str(EXAMPLES))
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata:\n  name: x\n"
        "spec:\n  model:\n    format: onnx\n    uri: file:x.onnx\n  replicas:\n    mim: 1\n  priority: 900\n"
    )
    berth.run("validate", "-f", str(bad), code=4)
    for said in ("bad.yaml", "10", "spec.replicas", "min", "priority", "100"):
        assert said in berth.stderr, said
    # The API says the same about the same text, with places as data.
    berth.start()
    berth.run("apply", "-f", str(bad), code=4)
    assert "spec.replicas" in berth.stderr
    status, _, body = berth.control("/v1/validate", "POST", bad.read_bytes(), {"content-type": "application/yaml"})
    detail = json.loads(body)["error"]["details"][0]
    assert status in (400, 422) and detail["line"] == 10 and detail["path"].startswith("spec.replicas")


def test_no_server_says_how_to_start_one(berth):
    berth.run("get", "deployments", code=1)
    assert "berth up" in berth.stderr


def test_help_version_and_completions(berth):
    for command in ("up", "apply", "get", "describe", "explain", "plan", "wait", "infer", "top", "delete", "validate"):
        assert "xample" in berth.run(command, "--help"), command
    assert berth.run("version").startswith("berth")
    for shell in ("bash", "zsh", "fish"):
        assert "berth" in berth.run("completions", shell)


def test_names_are_completed(shared):
    def completed(*words: str) -> list[str]:
        """What a shell offers for the last word, as `berth completions bash` asks for it; options aside."""
        asked = {"COMPLETE": "bash", "_CLAP_IFS": "\n", "_CLAP_COMPLETE_INDEX": str(len(words))}
        env = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
        command = [BERTH, "--", "berth", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE, env=env | asked | {"BERTH_API": f"http://{shared.api}"})
        return [word for word in done.stdout.split("\n") if word and not word.startswith("-")]

    nodes = [line.rpartition("/")[2] for line in shared.run("get", "nodes", "-o", "name").split()]
    assert nodes
    for words, offered in (
        (["infer", "ir"], ["iris"]),
        (["describe", "ir"], ["iris"]),
        (["describe", "deployment/ir"], ["deployment/iris"]),
        (["describe", "deployment", "ir"], ["iris"]),
        (["describe", "no"], ["nodes"]),
        (["describe", "deployments,no"], []),
        (["delete", "fu"], ["functions"]),
        (["get", "nodes", ""], nodes),
        (["get", "deployments,no"], ["deployments,nodes"]),
        (["rollout", "undo", "ir"], ["iris"]),
        (["rollout", "status", "deployment/ir"], ["deployment/iris"]),
        (["scale", "no"], []),
        (["wait", "iris", "--for", "Av"], ["Available"]),
        (["wait", "iris", "--for", "condition=Sch"], ["condition=Scheduled"]),
        (["infer", "nothing-that-is-there"], []),
    ):
        # A server that is busy for half a second has nothing offered.
        said = []
        until(lambda: f"{offered} for {words}, and not {said[-1]}", lambda: said.append(completed(*words)) or said[-1] == offered)


@pytest.mark.parametrize("arguments", [["get"], ["apply"], ["no-such-command"], ["up", "--memory", "much"]])
def test_usage_errors(berth, arguments):
    berth.run(*arguments, code=2)


def test_control_api_documents_itself(shared):
    status, _, body = shared.control("/openapi.json")
    document = json.loads(body)
    assert status == 200 and "/v1/deployments/{name}" in document["paths"]


def test_conflicts_are_told(berth):
    berth.start()
    berth.apply(manifest("iris"))
    seen = berth.deployment("iris")["metadata"]["resourceVersion"]
    berth.apply(manifest("iris", priority=55))
    headers = {"content-type": "application/json", "if-match": f'"{seen}"'}
    status, _, body = berth.control("/v1/deployments/iris", "PUT", json.dumps(manifest("iris", priority=60)), headers)
    assert status in (409, 412), body
    assert berth.deployment("iris")["spec"]["priority"] == 55


def test_logs_are_json_with_the_agreed_fields(shared):
    lines = [json.loads(line) for line in shared.logged_lines() if line.startswith("{")]
    assert lines and all({"timestamp", "component", "level", "event", "context"} <= line.keys() for line in lines)
    events = {line["event"] for line in lines}
    assert {"command_dispatched", "model_load_started", "model_load_success"} <= events, sorted(events)
    started = next(line for line in lines if line["event"] == "model_load_success")
    assert started["context"]["deployment_id"] in ("iris", "sentiment")


def test_a_cold_start_is_few_lines_on_a_terminal(berth):
    """Where no terminal is, the same are JSON: see above."""
    berth.folder.mkdir(parents=True, exist_ok=True)
    controller, terminal = os.openpty()
    shown = bytearray()

    def read() -> None:
        # A terminal that its last program has left fails to be read.
        with contextlib.suppress(OSError):
            while piece := os.read(controller, 65_536):
                shown.extend(piece)

    reader = threading.Thread(target=read)
    command = [BERTH, "up", "--data", str(berth.data), "--http", berth.http, "--api", berth.api]
    berth.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=os.environ | {"NO_COLOR": "1"})
    os.close(terminal)
    reader.start()
    try:
        until("the control API", berth.alive)
        berth.apply(manifest("cold", replicas={"min": 0}))
        until("an answer", lambda: berth.infer("cold")[0] == 200)
        until(lambda: f"the line of the load: {shown.decode(errors='replace')}", lambda: b" loaded in " in shown)
        assert berth.stop() == 0
    finally:
        berth.close()
        reader.join()
        os.close(controller)
    text = shown.decode()
    assert not [line for line in text.splitlines() if line.startswith("{")], text
    lines = [line for line in text.splitlines() if re.match(r"\d\d:\d\d:\d\d  cold ", line)]
    assert 1 <= len(lines) <= 5, text
    assert not [line for line in lines if " warn " in line or " ERROR " in line], text


def test_metrics_have_the_agreed_names(shared):
    shared.infer("iris")
    wanted = {
        "worker_inference_requests_total",
        "worker_inference_duration_seconds_bucket",
        "worker_models_load_duration_seconds_bucket",
        "worker_models_loaded_count",
        "worker_memory_used_bytes",
        "broker_reconciliation_loop_duration_seconds_bucket",
        "broker_commands_dispatched_total",
        "broker_workers_healthy_count",
        "broker_capacity_total_memory_available",
        "system_deployments_total_count",
        "system_models_per_worker_average",
        "system_capacity_utilization_percent",
    }
    lacking = lambda: wanted - {key.split("{")[0] for key in shared.metrics()}
    until(lambda: f"metrics: {sorted(lacking())} are missing", lambda: not lacking())
