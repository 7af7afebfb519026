"""Graphs that name files of others as their weights, and stores whose answers others could change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from conftest import GRAPHS, deployment
from harness.http_server import Answer, HttpServer, Request
from harness.processes import BERTH
from harness.waiting import PATIENCE, until


class Files(HttpServer):
    """A web server of a few files."""

    def __init__(self, **files: bytes):
        self.files = {f"/{name}.onnx": content for name, content in files.items()}
        super().__init__()

    def answer(self, request: Request) -> Answer:
        content = self.files.get(request.path)
        return Answer(404) if content is None else Answer(200, {"content-type": "application/octet-stream", "etag": '"1"'}, content)


def graph(location: str, length: int) -> bytes:
    """A graph that gives back its weights, which are in another file."""
    weights = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[length], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        weights.external_data.add(key=key, value=value)
    ends = [helper.make_tensor_value_info(name, TensorProto.UINT8, [length]) for name in ("x", "y")]
    node = helper.make_node("Where", ["c", "w", "x"], ["y"])
    condition = helper.make_tensor("c", TensorProto.BOOL, [1], np.array([True]))
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:], [condition, weights]), opset_imports=[helper.make_opsetid("", 16)])
    model.ir_version = 8
    return model.SerializeToString()


@pytest.fixture
def victim(berth):
    """A server with somebody's model in its cache, and where that lies."""
    secret = (GRAPHS / "mlp.onnx").read_bytes()
    files = Files(victim=secret)
    berth.start()
    berth.apply(of(files, "victim"))
    until("the victim to be there", lambda: berth.get("/v2/models/victim/ready")[0] == 200)
    cached = [path for path in (berth.data / "cache").rglob("*") if path.is_file() and path.read_bytes() == secret]
    assert len(cached) == 1, cached
    yield berth, files, cached[0]
    files.close()


def of(files: Files, name: str) -> dict:
    manifest = deployment(name, "add")
    manifest["spec"]["model"]["uri"] = f"{files.url}/{name}.onnx"
    return manifest


def test_weights_of_another_model_are_not_read(victim, tmp_path):
    berth, files, path = victim
    length = path.stat().st_size
    places = [str(path), os.path.relpath(path, path.parent.parent / "x"), f"../{path.parent.name}/{path.name}", path.name, "/proc/self/environ", "../../../state.redb"]
    for at, place in enumerate(places):
        files.files[f"/thief{at}.onnx"] = graph(place, length)
    berth.apply(*[of(files, f"thief{at}") for at in range(len(places))])
    for at, place in enumerate(places):
        said = until(f"{place} to be refused", lambda at=at: berth.status(f"thief{at}")["phase"] == "Failed" and str(berth.status(f"thief{at}")))
        assert "weights are in another file" in said, (place, said)
        assert berth.infer(f"thief{at}")[0] in (400, 503)

    # A folder of this machine, whose weights lead out of it.
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "weights").symlink_to(path)
    for at, place in enumerate(("weights", os.path.relpath(path, folder))):
        (folder / "model.onnx").write_bytes(graph(place, length))
        manifest = deployment(f"folder{at}", "add")
        manifest["spec"]["model"]["uri"] = f"file:{folder}/model.onnx"
        berth.apply(manifest)
        said = until(f"{place} to be refused", lambda at=at: berth.status(f"folder{at}")["phase"] == "Failed" and str(berth.status(f"folder{at}")))
        assert "outside of its folder" in said or "weights are in another file" in said, (place, said)
    assert berth.get("/v2/models/victim/ready")[0] == 200


@pytest.mark.parametrize("store", ["etcd://192.0.2.1:2379", "etcd://127.0.0.1:1,192.0.2.1:2379"])
def test_a_store_in_clear_on_another_machine_is_refused(tmp_path, store):
    """Whoever reaches it declares deployments, and whoever is between reads and changes them."""
    made = [subprocess.run([BERTH, "pki", *words], capture_output=True, timeout=PATIENCE) for words in (("init", str(tmp_path / "pki")), ("issue", str(tmp_path / "pki"), "a"))]
    assert all(one.returncode == 0 for one in made), made
    command = [BERTH, "node", "--name", "a", "--pki", str(tmp_path / "pki/a"), "--data", str(tmp_path / "data"), "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and "etcds://" in done.stderr and "--insecure" in done.stderr, done.stderr
