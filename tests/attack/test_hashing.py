"""Files without end in manifests: whoever may preview a change must not be able to stop the control plane."""

from __future__ import annotations

import http.client
import json

from harness.examples import manifest

# More than there are threads that read the store, or that hash.
PREVIEWS = 6


def test_files_without_end_stop_neither_metrics_nor_declarations(berth, tmp_path):
    berth.start()
    endless = tmp_path / "endless.onnx"
    with endless.open("wb") as file:
        file.truncate(2 << 40)
    body = json.dumps(manifest("endless", model={"uri": f"file:{endless}"})).encode()
    previews = [http.client.HTTPConnection(berth.api) for _ in range(PREVIEWS)]
    for preview in previews:
        preview.request("POST", "/v1/plan", body, {"content-type": "application/yaml"})
    # The artifact of this one is hashed between theirs.
    berth.apply(manifest("iris"))
    berth.available("iris")
    assert berth.metric("berth_gateway_requests_inside") == 0
    berth.run("delete", "deployment", "iris")
    assert berth.control("/readyz")[0] == 200
    # They are given up with their connections, and give their places among the bodies back.
    for preview in previews:
        preview.close()
    berth.apply(manifest("iris"))
    berth.available("iris")
