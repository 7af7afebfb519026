"""Model servers that Berth starts: a scripted one in both protocols, MLServer with models of real libraries, and Triton."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from harness.processes import BERTH
from harness.waiting import until

grpc = pytest.importorskip("grpc")

# The programs of an environment with MLServer; `cargo xtask test` sets it.
MLSERVER = os.environ.get("MLSERVER")
# The same with Triton, as its Python package carries it.
TRITON = os.environ.get("TRITON")

# A library with NVML's interface and two devices.
NVML = Path(__file__).parents[2] / "crates/worker/tests/fixtures/nvml.c"

TRAIN = """
import sys
import numpy as np
kind, path = sys.argv[1:]
x = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
y = np.array([0, 0, 1, 1])
if kind == "sklearn":
    import joblib
    from sklearn.tree import DecisionTreeClassifier
    joblib.dump(DecisionTreeClassifier().fit(x, y), path)
elif kind == "lightgbm":
    import lightgbm
    settings = {"objective": "binary", "verbose": -1, "min_data_in_leaf": 1, "min_data_in_bin": 1}
    lightgbm.train(settings, lightgbm.Dataset(x, label=y), 5).save_model(path)
elif kind == "mlflow":
    import mlflow
    from sklearn.linear_model import LogisticRegression
    signature = mlflow.models.infer_signature(x, y)
    mlflow.sklearn.save_model(LogisticRegression().fit(x, y), path, signature=signature, pip_requirements=["scikit-learn"])
else:
    import xgboost
    xgboost.train({"objective": "binary:logistic", "min_child_weight": 0}, xgboost.DMatrix(x, label=y), 5).save_model(path)
"""


def declared(folder: Path, spec: dict, labels: dict[str, str] | None = None) -> str:
    path = folder / "runtime.yaml"
    metadata = {"name": "started", "labels": labels or {}}
    path.write_text(json.dumps({"apiVersion": "berth.dev/v1", "kind": "Runtime", "metadata": metadata, "spec": spec}))
    return str(path)


def model(name: str, kind: str, uri: str) -> dict:
    return {
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"replicas": {"min": 0}, "model": {"format": kind, "uri": uri}},
    }


def rows(values: list[float]) -> dict:
    return {"inputs": [{"name": "x", "shape": [1, len(values)], "datatype": "FP64", "data": values}]}


def predicted(berth, name: str, values: list[float]) -> float:
    status, answer = berth.infer(name, rows(values))
    assert status == 200, (answer, berth.logged())
    return answer["outputs"][0]["data"][0]


def loaded(berth, *names: str) -> None:
    """Asks until the first answer, as "try again" says: a model of a library that its server imports first takes longer to load
    than a request waits."""
    for name in names:
        until(f"the first answer of {name}", lambda: berth.infer(name, rows([0.0, 0.0]))[0] == 200)


def pids(berth) -> list[int]:
    lines = (json.loads(line) for line in berth.logged_lines() if '"runtime_started"' in line)
    return [line["context"]["pid"] for line in lines]


def gone(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_runtime_is_started_and_started_again(berth, tmp_path):
    spec = {"command": [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}"], "formats": ["*"]}
    berth.start("--runtime", declared(tmp_path, spec))
    berth.apply(model("m", "scripted", "runtime:SIZE_1000?type=T"))
    assert predicted(berth, "m", [1.0]) == 1.0
    (pid,) = pids(berth)
    os.killpg(pid, signal.SIGKILL)
    until("another process", lambda: len(pids(berth)) == 2)
    until("an answer of the new process", lambda: berth.infer("m", rows([2.0]))[0] == 200)
    assert (berth.data / "runtimes" / "started.log").exists()
    assert berth.stop() == 0
    assert gone(pids(berth)[1])


def test_a_runtime_that_hangs_is_ended_and_started_again(berth, tmp_path):
    health = {"interval": "1s", "timeout": "1s", "lostAfter": "2s"}
    spec = {"command": [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}"], "formats": ["*"], "health": health}
    berth.start("--runtime", declared(tmp_path, spec))
    berth.apply(model("m", "scripted", "runtime:SIZE_1000?type=T"))
    assert predicted(berth, "m", [1.0]) == 1.0
    (pid,) = pids(berth)
    # Its port still takes connections, and nobody calls it.
    os.killpg(pid, signal.SIGSTOP)
    until("another process", lambda: len(pids(berth)) == 2)
    assert gone(pid)
    until("an answer of the new process", lambda: berth.infer("m", rows([2.0]))[0] == 200)


def test_labels_of_a_runtime_are_matched_by_selectors(berth, tmp_path):
    spec = {"command": [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}"], "formats": ["*"]}
    berth.start("--labels", "tier=silver", "--runtime", declared(tmp_path, spec, {"tier": "gold"}))
    for name in ("gold", "silver"):
        one = model(name, "scripted", "runtime:SIZE_1000?type=T")
        one["spec"] |= {"selector": {"required": {"tier": name}}, "replicas": 1}
        berth.apply(one)
    assert predicted(berth, "gold", [1.0]) == 1.0
    until("the reason", lambda: "tier" in berth.run("explain", "silver", code=None))
    assert "tier=gold" in berth.run("describe", "node", "local")


def test_each_model_has_a_process_of_its_own_where_that_is_declared(berth, tmp_path):
    command = [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}", "--any-method"]
    spec = {"command": command, "formats": ["scripted"], "modelsPerProcess": 1, "memory": "1GiB"}
    berth.start("--runtime", declared(tmp_path, spec))
    assert pids(berth) == [], "nothing is started before there is a model"
    berth.apply(*(model(name, "scripted", "runtime:SIZE_1000?type=T") for name in ("one", "two")))
    assert [predicted(berth, name, [2.0]) for name in ("one", "two")] == [2.0, 2.0]
    first, second = pids(berth)
    os.killpg(first, signal.SIGKILL)
    assert predicted(berth, "two", [3.0]) == 3.0, "the other does not notice"
    until("an answer of the next process", lambda: berth.infer("one", rows([4.0]))[0] == 200)
    third = pids(berth)[2]
    berth.run("delete", "deployment", "one")
    until("its process to end", lambda: gone(third))
    assert not gone(second) and predicted(berth, "two", [5.0]) == 5.0
    assert (berth.data / "runtimes" / "started@one.log").exists()
    # One that cannot come up fails its load, with what it wrote, and no other one.
    berth.apply(model("bad", "scripted", "runtime:FAIL_no such layer?type=T"))
    status, answer = berth.infer("bad", rows([1.0]))
    assert status == 503 and "no such layer" in str(answer), answer
    until("its process to end", lambda: gone(pids(berth)[3]))
    assert berth.stop() == 0
    until("the last process to end", lambda: gone(second))


def test_a_load_that_fails_leaves_no_folder_of_its_process(berth, tmp_path):
    command = [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}", "--repository", "{repository}"]
    spec = {"protocol": "v2", "layout": "triton", "command": command, "formats": ["scripted"], "modelsPerProcess": 1, "memory": "4MiB"}
    berth.start("--runtime", declared(tmp_path, spec))
    path = tmp_path / "bad.txt"
    path.write_text("FAIL_no such layer\n")
    berth.apply(model("bad", "scripted", path.as_uri()))
    status, answer = berth.infer("bad", rows([1.0]))
    assert status == 503 and "no such layer" in str(answer), answer
    folders = berth.data / "runtimes" / "started"
    until("its folder to go", lambda: not folders.exists() or not list(folders.iterdir()))


def test_a_process_of_one_model_that_cannot_start_fails_its_load_with_its_words(berth, tmp_path):
    script = "echo there is no such model server here >&2; exit 7"
    spec = {"command": ["/bin/sh", "-c", script], "formats": ["scripted"], "modelsPerProcess": 1}
    berth.start("--runtime", declared(tmp_path, spec))
    berth.apply(model("m", "scripted", "runtime:SIZE_1000?type=T"))
    status, answer = berth.infer("m", rows([1.0]))
    assert status == 503 and "there is no such model server here" in str(answer), answer


def test_a_process_whose_port_was_taken_is_followed_by_one_with_another_port(berth, tmp_path):
    ports = tmp_path / "ports"
    # Who finds the first port taken says so and ends.
    script = f'echo $1 >> {ports}; [ $(wc -l < {ports}) -gt 1 ] || exit 1; exec {BERTH} testing runtime --listen 127.0.0.1:$1'
    command = ["/bin/sh", "-c", script, "sh", "{port}"]
    berth.start("--runtime", declared(tmp_path, {"command": command, "formats": ["scripted"], "modelsPerProcess": 1}))
    berth.apply(model("m", "scripted", "runtime:SIZE_1000?type=T"))
    assert predicted(berth, "m", [1.0]) == 1.0
    first, second = ports.read_text().split()
    assert first != second


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_runtime_that_is_started_sees_the_gpus_of_its_worker(berth, tmp_path):
    """Two devices, of a library that stands in for the driver's; the operator may choose one of them."""
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, NVML], check=True, capture_output=True, timeout=60)
    devices = ["GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"]
    script = 'echo "sees $CUDA_VISIBLE_DEVICES"; exec "$0" testing runtime --listen "$1"'
    spec = {"command": ["/bin/sh", "-c", script, BERTH, "127.0.0.1:{port}"], "formats": ["scripted"]}
    arguments = ("--runtime", declared(tmp_path, spec), "--nvml-library", str(library))

    def seen() -> list[str]:
        log = berth.data / "runtimes" / "started.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.startswith("sees ")]

    berth.start(*arguments)
    berth.apply(model("m", "scripted", "runtime:SIZE_1000?type=T"))
    assert predicted(berth, "m", [1.0]) == 1.0
    own = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(devices))
    until(lambda: f"a word of all devices; it said {seen()}", lambda: seen() == [f"sees {own}"])
    assert berth.stop() == 0

    declared(tmp_path, spec | {"environment": {"CUDA_VISIBLE_DEVICES": devices[1]}})
    berth.start(*arguments)
    until(lambda: f"a word of one device; it said {seen()}", lambda: seen()[1:] == [f"sees {devices[1]}"])


def test_a_model_server_isolates_nothing_and_says_so(berth, tmp_path):
    spec = {"command": [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}"], "formats": ["scripted"]}
    berth.start("--runtime", declared(tmp_path, spec))
    fenced, plain = (model(name, "scripted", "runtime:SIZE_1000?type=T") for name in ("fenced", "plain"))
    fenced["spec"] |= {"runtime": {"isolation": "sandbox"}, "replicas": 1}
    plain["spec"]["runtime"] = {"isolation": "none"}
    berth.apply(fenced, plain)
    assert predicted(berth, "plain", [1.0]) == 1.0
    explained = until("the reason", lambda: b"runs all its models in one process" in (said := berth.control("/v1/deployments/fenced/explain")[2]) and json.loads(said))
    assert [worker["rejection"]["reason"] for worker in explained["workers"]] == ["Isolation"], explained
    assert berth.infer("fenced", rows([1.0]))[0] == 503
    nodes = json.loads(berth.control("/v1/nodes")[2])["items"]
    offers = {runtime["name"]: runtime["isolation"] for runtime in nodes[0]["status"]["capacity"]["runtimes"]}
    assert offers["started"] == "none" and offers["onnx"] in ("process", "sandbox"), offers
    shown = subprocess.run([BERTH, "describe", f"node/{nodes[0]['metadata']['name']}", "--api", f"http://{berth.api}"], capture_output=True, text=True, timeout=60)
    assert "started none (this model server runs all its models in one process" in " ".join(shown.stdout.split()), shown


def test_a_runtime_that_cannot_start_says_why(berth, tmp_path):
    script = "echo there is no such model server here >&2; exit 7"
    spec = {"command": ["/bin/sh", "-c", script], "formats": ["*"], "startTimeout": "3s"}
    done = subprocess.run(
        [BERTH, "up", "--data", str(tmp_path / "data"), "--runtime", declared(tmp_path, spec), "--http", berth.http, "--api", berth.api],
        capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 1
    assert "there is no such model server here" in done.stderr


def test_a_scripted_server_with_a_model_repository(berth, tmp_path):
    command = [BERTH, "testing", "runtime", "--listen", "127.0.0.1:{port}", "--repository", "{repository}", "--starting", "2"]
    spec = {"protocol": "v2", "layout": "triton", "command": command, "formats": ["scripted"], "memory": "1GiB"}
    berth.start("--runtime", declared(tmp_path, spec))

    def scripted(name: str, script: str) -> dict:
        path = tmp_path / f"{name.replace('/', '-')}.txt"
        path.write_text(script)
        return model(name, "scripted", path.as_uri())

    berth.apply(scripted("m", "SIZE_1000_50"), scripted("team/other", "STAY_1"), scripted("bad", "FAIL_no such backend"))
    assert predicted(berth, "m", [1.0]) == 1.0
    assert predicted(berth, "team%2Fother", [3.0]) == 3.0
    status, answer = berth.infer("bad", rows([1.0]))
    assert status == 503 and "no such backend" in str(answer), answer

    # It forgets its models: the next request finds that out in Triton's words, and loads.
    with grpc.insecure_channel(berth.http) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        infer(b"\x0a\x01m", metadata=[("testing", "purge")], timeout=30)
    assert predicted(berth, "m", [2.0]) == 2.0
    repository = berth.data / "runtimes" / "started"
    berth.run("delete", "deployment", "m")
    until("the model's folder to go", lambda: not (repository / "m").exists())


@pytest.mark.skipif(MLSERVER is None, reason="MLSERVER names no environment with MLServer")
def test_mlserver_serves_models_of_real_libraries(berth, tmp_path):
    python = Path(MLSERVER) / "python"
    # MLflow's is a folder.
    kinds = {"sklearn": "model.joblib", "lightgbm": "model.bst", "xgboost": "model.json", "mlflow": "flow"}
    spec = {
        "protocol": "v2",
        "layout": "mlserver",
        "command": [str(Path(MLSERVER) / "mlserver"), "start", "{repository}"],
        "environment": {
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_GRPC_PORT": "{port}",
            "MLSERVER_HTTP_PORT": "{port.http}",
            "MLSERVER_METRICS_PORT": "{port.metrics}",
            "MLSERVER_PARALLEL_WORKERS": "0",
        },
        "formats": list(kinds),
        "memory": "1GiB",
    }
    berth.start("--runtime", declared(tmp_path, spec))
    for kind, file in kinds.items():
        path = tmp_path / kind / file
        path.parent.mkdir()
        subprocess.run([python, "-c", TRAIN, kind, path], check=True, capture_output=True)
        # A name that no folder of a server can have.
        name = f"team/{kind}"
        berth.apply(model(name, kind, f"file:{path}"))
    loaded(berth, *(f"team%2F{kind}" for kind in kinds))
    for kind in kinds:
        low, high = (predicted(berth, f"team%2F{kind}", values) for values in ([0.0, 0.0], [3.0, 3.0]))
        assert low < high, (kind, low, high)
    # What the repository has is what is loaded.
    repository = berth.data / "runtimes" / "started"
    assert len(list(repository.iterdir())) == len(kinds)
    berth.run("delete", "deployment", "team/sklearn", "-n", "default")
    until("the model's folder to go", lambda: len(list(repository.iterdir())) == len(kinds) - 1)
    (pid,) = pids(berth)
    assert berth.stop() == 0
    assert gone(pid)


TRIPLE = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", array * 3)]) for array in inputs]
"""

CONFIG = """
name: "theirs"
backend: "python"
max_batch_size: 8
input [{ name: "x", data_type: TYPE_FP64, dims: [-1] }]
output [{ name: "y", data_type: TYPE_FP64, dims: [-1] }]
"""


@pytest.mark.skipif(TRITON is None, reason="TRITON names no environment with Triton")
def test_triton_serves_models_of_its_python_backend(berth, tmp_path):
    home = next(Path(TRITON).parent.glob("lib/*/site-packages/pytriton/tritonserver"))
    # The stub of the environment's version of Python must lie beside the backend, whose library path is relative to it.
    version = home.parents[2].name.removeprefix("python")
    shutil.copy(home / "python_backend_stubs" / version / "triton_python_backend_stub", home / "backends/python")
    command = [
        str(home / "bin/tritonserver"), "--model-repository={repository}", "--model-control-mode=explicit",
        f"--backend-directory={home / 'backends'}", "--allow-gpu-metrics=false",
        "--grpc-address=127.0.0.1", "--grpc-port={port}", "--http-address=127.0.0.1", "--http-port={port.http}",
        "--metrics-address=127.0.0.1", "--metrics-port={port.metrics}",
    ]
    spec = {
        "protocol": "v2",
        "layout": "triton",
        "command": command,
        # Models' processes find their packages by the first Python there.
        "environment": {"PATH": f"{TRITON}:/usr/bin:/bin"},
        "formats": ["triton"],
        "memory": "1GiB",
    }
    berth.start("--runtime", declared(tmp_path, spec))
    for name, code in (("triple", TRIPLE), ("broken", "raise ValueError('no such weights')")):
        folder = tmp_path / name
        (folder / "1").mkdir(parents=True)
        (folder / "1/model.py").write_text(code)
        (folder / "config.pbtxt").write_text(CONFIG)
        berth.apply(model(f"team/{name}", "triton", folder.as_uri()))
    assert predicted(berth, "team%2Ftriple", [2.0]) == 6.0
    metadata = json.loads(berth.get("/v2/models/team%2Ftriple")[2])
    assert [tensor["name"] for tensor in metadata["inputs"] + metadata["outputs"]] == ["x", "y"]
    status, answer = berth.infer("team%2Fbroken", rows([1.0]))
    assert status == 503 and "no such weights" in str(answer), answer
    (pid,) = pids(berth)
    os.killpg(pid, signal.SIGKILL)
    until("an answer of the new process", lambda: berth.infer("team%2Ftriple", rows([3.0]))[0] == 200)
    repository = berth.data / "runtimes" / "started"
    berth.run("delete", "deployment", "team/triple", "-n", "default")
    until("the model's folder to go", lambda: not any("triple" in folder.name for folder in repository.iterdir()))
    assert berth.stop() == 0
