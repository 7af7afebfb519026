"""Objects of ModelMesh Serving as files: a ServingRuntime with a real MLServer, models from the storages of a Secret; and the model
servers that take lists of models, as fakes."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.http_server import Answer, HttpServer, Request, part_of
from harness.ports import free_port
from harness.processes import BERTH, Process
from harness.waiting import until
from test_runtimes import MLSERVER, TRAIN, declared, gone, loaded, model, pids, predicted, rows

grpc = pytest.importorskip("grpc")

# As modelmesh-serving ships it (config/runtimes/mlserver-1.x.yaml), without what belongs to pods.
SERVING_RUNTIME = """
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata:
  name: mlserver-1.x
  labels: {name: modelmesh-serving-mlserver-1.x-SR}
spec:
  supportedModelFormats:
  - {name: sklearn, version: "0", autoSelect: true}
  - {name: sklearn, version: "1", autoSelect: true}
  - {name: lightgbm, version: "3", autoSelect: true}
  protocolVersions: [grpc-v2]
  multiModel: true
  grpcEndpoint: "port:8085"
  grpcDataEndpoint: "port:8001"
  containers:
  - name: mlserver
    image: seldonio/mlserver:1.7.1
    env:
    - {name: MLSERVER_MODELS_DIR, value: "/models/_mlserver_models/"}
    resources:
      requests: {cpu: 500m, memory: 1Gi}
      limits: {cpu: "5", memory: 1Gi}
  builtInAdapter:
    serverType: mlserver
    runtimeManagementPort: 8001
    memBufferBytes: 134217728
    modelLoadingTimeoutMillis: 90000
"""

PREDICTOR = """
apiVersion: serving.kserve.io/v1alpha1
kind: Predictor
metadata: {name: svm}
spec:
  modelType: {name: sklearn, version: "0"}
  path: sklearn/model.joblib
  runtime: {name: mlserver-1.x}
  storage:
    persistentVolumeClaim: {claimName: models}
"""

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: boosted
  annotations: {serving.kserve.io/deploymentMode: ModelMesh}
spec:
  predictor:
    model:
      modelFormat: {name: lightgbm, version: "3"}
      runtime: mlserver-1.x
      storage: {key: web, path: lightgbm/model.bst}
"""


class Private(HttpServer):
    """Serves a folder to those who have the key."""

    def __init__(self, folder: Path, key: str):
        self.folder, self.key, self.refused = folder, key, 0
        super().__init__()

    def answer(self, request: Request) -> Answer:
        if request.headers.get("x-key") != self.key:
            self.refused += 1
            return Answer(403)
        place = self.folder / request.path.lstrip("/")
        return part_of(place.read_bytes(), request.headers.get("range"), {"etag": '"1"'}) if place.is_file() else Answer(404)


def secret(path: Path, url: str, key: str) -> None:
    entry = json.dumps({"type": "http", "url": url, "headers": {"X-Key": [key]}})
    data = base64.b64encode(entry.encode()).decode()
    path.write_text(f"apiVersion: v1\nkind: Secret\nmetadata: {{name: storage-config}}\ntype: Opaque\ndata:\n  web: {data}\n")


@pytest.mark.skipif(MLSERVER is None, reason="MLSERVER names no environment with MLServer")
def test_a_serving_runtime_serves_models_of_a_storage_config(berth, tmp_path):
    volumes, python = tmp_path / "volumes", Path(MLSERVER) / "python"
    for kind, file in (("sklearn", "model.joblib"), ("lightgbm", "model.bst")):
        (volumes / "models" / kind).mkdir(parents=True)
        subprocess.run([python, "-c", TRAIN, kind, volumes / "models" / kind / file], check=True, capture_output=True)
    web = Private(volumes / "models", "right-SECRET")
    runtime, config, objects = (tmp_path / name for name in ("serving-runtime.yaml", "secret.yaml", "objects.yaml"))
    runtime.write_text(SERVING_RUNTIME)
    secret(config, web.url, "wrong-SECRET")
    objects.write_text(PREDICTOR + "---" + SERVICE)
    # The server is found on the worker's PATH.
    env = {"PATH": f"{MLSERVER}:{os.environ['PATH']}"}
    berth.start("--runtime", str(runtime), "--storage-config", str(config), "--volumes", str(volumes), env=env)
    try:
        converted = berth.run("convert", "-f", str(objects))
        assert "pvc://models/sklearn/model.joblib" in converted and "storage://web/lightgbm/model.bst" in converted, converted
        berth.run("apply", "-f", str(objects))
        loaded(berth, "svm")
        assert predicted(berth, "svm", [0.0, 0.0]) < predicted(berth, "svm", [3.0, 3.0])

        status, answer = berth.infer("boosted", rows([0.0, 0.0]))
        assert status == 503 and "web (storage-config)" in str(answer) and web.refused, answer
        # The Secret is read for each fetch: a better one needs no restart.
        secret(config, web.url, "right-SECRET")
        berth.apply(model("boosted-2", "lightgbm", "storage://web/lightgbm/model.bst"))
        loaded(berth, "boosted-2")
        assert predicted(berth, "boosted-2", [0.0, 0.0]) < predicted(berth, "boosted-2", [3.0, 3.0])
        assert "SECRET" not in berth.logged() + json.dumps(berth.deployment("boosted"))

        berth.apply(model("astray", "sklearn", "pvc://models/..%2f..%2fsecret.yaml"))
        status, answer = berth.infer("astray", rows([0.0, 0.0]))
        assert status == 503 and "leads out of its volume" in str(answer), answer
    finally:
        web.close()


def test_a_secret_is_not_applied_and_a_serving_runtime_says_where_it_goes(berth, tmp_path):
    berth.start()
    # A Secret is none of Berth's objects: whoever applies a folder is told so, and nothing of what is in it.
    for text in (SERVING_RUNTIME, "apiVersion: v1\nkind: Secret\nmetadata: {name: storage-config}\nstringData: {a: hush}\n"):
        path = tmp_path / "object.yaml"
        path.write_text(textwrap.dedent(text))
        berth.run("apply", "-f", str(path), code=None)
        assert "error:" in berth.stderr and "hush" not in berth.stderr, berth.stderr


ADAPTER = """
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: scripted}
spec:
  supportedModelFormats: [{name: scripted, autoSelect: true}]
  multiModel: true
  grpcEndpoint: "port:PORT"
"""


def test_a_serving_runtime_is_for_a_worker_as_it_is_and_as_what_it_converts_to(berth, tmp_path):
    port, server = free_port(), Process("adapter", tmp_path)
    server.spawn(BERTH, "testing", "runtime", "--listen", f"127.0.0.1:{port}", "--any-method")
    try:
        path, converted = tmp_path / "serving-runtime.yaml", tmp_path / "runtime.yaml"
        path.write_text(ADAPTER.replace("PORT", str(port)))
        converted.write_text(berth.run("convert", "-f", str(path)))
        assert "kind: Runtime" in converted.read_text()
        for file, name in ((path, "one"), (converted, "two")):
            berth.start("--runtime", str(file))
            refused = berth.run("apply", "-f", str(file), code=None)
            assert f"berth up --runtime {file}" in berth.stderr, (refused, berth.stderr)
            berth.apply(model(name, "scripted", "runtime:SIZE_1000?type=T"))
            with grpc.insecure_channel(berth.http) as channel:
                assert channel.unary_unary("/any.Service/any")(b"x", metadata=[("mm-model-id", name)], timeout=60) == b"x"
            berth.stop()
    finally:
        server.close()


# As KServe has it for a server that is started with its model; the program stands in for the image's.
OF_ONE = f"""
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {{name: kserve-scale}}
spec:
  supportedModelFormats: [{{name: scale, version: "1", autoSelect: true}}]
  protocolVersions: [v1, v2]
  multiModel: false
  containers:
  - name: kserve-container
    image: example.com/scale:1
    command: [{json.dumps(sys.executable)}, {json.dumps(str(Path(__file__).parent / "kserve_server.py"))}]
    args: ["--model_name={{{{.Name}}}}", --model_dir=/mnt/models, --http_port=8080, --grpc_port=8081]
"""

SCALED = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: NAME}
spec:
  predictor:
    model:
      modelFormat: {name: scale, version: "1"}
      runtime: kserve-scale
      storageUri: pvc://models/PATH
"""


def test_a_server_of_kserve_is_started_with_each_model(berth, tmp_path):
    runtime, objects, volumes = tmp_path / "serving-runtime.yaml", tmp_path / "objects.yaml", tmp_path / "volumes"
    runtime.write_text(OF_ONE)
    converted = berth.run("convert", "-f", str(runtime))
    assert "modelsPerProcess: 1" in converted and "--model_dir={artifact.folder}" in converted, converted
    for name, factor in (("double", "2"), ("triple", "3")):
        (volumes / "models" / name).mkdir(parents=True)
        (volumes / "models" / name / "factor.txt").write_text(factor)
    # A file, and a folder.
    places = {"double": "double/factor.txt", "triple": "triple"}
    objects.write_text("---".join(SCALED.replace("NAME", name).replace("PATH", path) for name, path in places.items()))
    berth.start("--runtime", str(runtime), "--volumes", str(volumes))
    assert pids(berth) == [], "nothing is started before there is a model"
    berth.run("apply", "-f", str(objects))

    def scaled(name: str, value: float) -> float:
        until(f"an answer of {name}", lambda: berth.infer(name, rows([value]))[0] == 200)
        return predicted(berth, name, [value])

    assert (scaled("double", 2.0), scaled("triple", 2.0)) == (4.0, 6.0)
    # One whose port was taken by somebody else is started once more.
    living = lambda: [pid for pid in pids(berth) if not gone(pid)]
    first, second = living()
    os.killpg(first, signal.SIGKILL)
    until("it to end", lambda: gone(first))
    assert (scaled("double", 3.0), scaled("triple", 3.0)) == (6.0, 9.0), "it is started again with its model"
    assert second in living() and len(living()) == 2
    folders = berth.data / "runtimes" / "kserve-scale"
    assert len(list(folders.iterdir())) == 2
    berth.run("delete", "deployment", "double")
    berth.run("delete", "deployment", "triple")
    until("their processes to end", lambda: not living())
    until("their folders to go", lambda: not list(folders.iterdir()))
    assert (berth.data / "runtimes" / "kserve-scale@double.log").exists(), "what it wrote can be read still"


def scripted(tmp_path: Path, name: str, kind: str, script: str) -> dict:
    folder = tmp_path / "artifacts" / name
    folder.mkdir(parents=True)
    (folder / "model.txt").write_text(script)
    return model(name, kind, folder.as_uri())


def fake(stands_for: str) -> list[str]:
    return [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}", "--repository", "{repository}", "--stands-for", stands_for]


def test_openvino_model_server_as_a_fake(berth, tmp_path):
    # The fake has one port for both.
    spec = {"protocol": "v2", "layout": "openvino", "command": fake("openvino"), "restAddress": "127.0.0.1:{port}", "formats": ["openvino_ir"], "memory": "1GiB"}
    berth.start("--runtime", declared(tmp_path, spec))
    berth.apply(*(scripted(tmp_path, name, "openvino_ir", script) for name, script in (("one", "SIZE_1000_20"), ("two", ""), ("bad", "FAIL_no such layer"))))
    assert [predicted(berth, name, [2.0]) for name in ("one", "two")] == [2.0, 2.0]
    status, answer = berth.infer("bad", rows([1.0]))
    assert status == 503 and "the server says LOADING, UNKNOWN" in str(answer), answer
    listed = berth.data / "runtimes/started/model_config_list.json"
    names = lambda: {entry["config"]["name"] for entry in json.loads(listed.read_text())["model_config_list"]}
    assert names() == {"one", "two"}, "what cannot be loaded does not stay on the list"
    # It forgets its models, and is started again: it finds its list.
    (pid,) = pids(berth)
    os.killpg(pid, signal.SIGKILL)
    until("an answer of the new process", lambda: berth.infer("one", rows([3.0]))[0] == 200)
    berth.run("delete", "deployment", "one")
    until("the model to leave the list", lambda: names() == {"two"})


def test_tensorflow_serving_as_a_fake(berth, tmp_path):
    spec = {"protocol": "tensorflow", "command": fake("tensorflow"), "formats": ["tensorflow"], "memory": "1GiB"}
    berth.start("--runtime", declared(tmp_path, spec))
    berth.apply(*(scripted(tmp_path, name, "tensorflow", script) for name, script in (("one", "SIZE_1000_20"), ("bad", "FAIL_no such op"))))
    with grpc.insecure_channel(berth.http) as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")

        def ask(name: str, *metadata: tuple[str, str]) -> tuple[bytes, str]:
            answer, about = call.with_call(b"\x1a\x03abc", metadata=[("mm-model-id", name), *metadata], timeout=60)
            return answer, dict(about.initial_metadata())["testing-model-id"]

        # The model's name is put where the protocol has it: field 1 of the message in field 1.
        assert ask("one") == (b"\x1a\x03abc" + b"\x0a\x05\x0a\x03one", "one")
        with pytest.raises(grpc.RpcError) as failed:
            ask("bad")
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE and "no such op" in failed.value.details()
        # A server that has lost its models is told its list again.
        assert ask("one", ("testing", "lose=1"))[1] == "one"
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/tensorflow.serving.ModelService/GetModelStatus")(b"", metadata=[("mm-model-id", "one")], timeout=60)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    berth.run("delete", "deployment", "one")
    listed = berth.data / "runtimes/started/models.config"
    until("the model to leave the list", lambda: "one" not in listed.read_text())
