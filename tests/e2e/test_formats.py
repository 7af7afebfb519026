"""Models of usual frameworks without a card, with the real packages of the index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from harness.server import Berth

SKLEARN = ["scikit-learn==1.7.2", "joblib==1.5.2", "numpy==2.3.4"]
COLUMNS = [*SKLEARN, "pandas==2.3.3"]
XGBOOST = ["xgboost-cpu==3.1.1", "numpy==2.3.4"]
LIGHTGBM = ["lightgbm==4.6.0", *SKLEARN]
MLFLOW = ["mlflow-skinny==3.6.0", "scikit-learn==1.7.2", "numpy==2.3.4", "pandas==2.3.3", "cloudpickle==3.1.2"]

# Pins that hold together: models are trained in one environment, and each is served in the one of its own packages.
TRAINING = sorted({*COLUMNS, *XGBOOST, *LIGHTGBM, *MLFLOW})

# Makes all models in a folder: 3 features, the class is whether the first is above 0.5.
TRAIN = """
import sys
from pathlib import Path
import joblib, lightgbm, mlflow.sklearn, numpy, pandas, xgboost
from mlflow.models import infer_signature
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
folder, *packages = sys.argv[1:]
folder = Path(folder)
for kind in ("joblib", "columns", "xgboost", "lightgbm", "mlflow"):
    (folder / kind).mkdir()
rng = numpy.random.default_rng(0)
X = rng.random((200, 3)); y = (X[:, 0] > 0.5).astype(int)
model = LogisticRegression(C=1000).fit(X, y)
joblib.dump(model, folder / "joblib" / "model.joblib")
# Without the list of packages MLflow would load the model once more to see which it needs.
signature = infer_signature(X, model.predict(X))
mlflow.sklearn.save_model(model, folder / "mlflow" / "model", signature=signature, pip_requirements=packages)
# Fitted on a data frame, of which it picks columns by name.
frame = pandas.DataFrame(X, columns=["age", "height", "weight"])
picked = ColumnTransformer([("kept", "passthrough", ["age", "weight"])])
joblib.dump(make_pipeline(picked, LogisticRegression(C=1000)).fit(frame, y), folder / "columns" / "model.joblib")
joblib.dump(lightgbm.LGBMClassifier(n_estimators=20, verbose=-1).fit(X, y), folder / "lightgbm" / "model.joblib")
booster = xgboost.train({"objective": "multi:softmax", "num_class": 2}, xgboost.DMatrix(X, y), 10)
# Each form is that of the name's ending.
for form in ("ubj", "json", "bst"):
    booster.save_model(folder / "xgboost" / f"model.{form}")
"""


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs Python with the packages of training, from `uv`, which the tests have anyway."""
    pins = [part for package in TRAINING for part in ("--with", package)]
    command = [os.environ["BERTH_UV"], "run", "--no-project", "--python", "3.11", *pins, "python", *arguments]
    return subprocess.run(command, timeout=600, **options)


class Trained:
    """Models that are trained once, and copied to where a test wants one."""

    def __init__(self, folder: Path):
        self.folder = folder
        python("-c", TRAIN, str(folder), *MLFLOW, check=True)

    def copy(self, kind: str, place: Path) -> Path:
        made = self.folder / kind / place.name
        return shutil.copytree(made, place) if made.is_dir() else shutil.copyfile(made, place)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A server that keeps the packages that its models need: models with the same packages share them. Each test has models of its own names."""
    server = Berth(tmp_path_factory.mktemp("installed"))
    try:
        yield server.start()
    finally:
        server.close()


def declared(name: str, format: str, place: Path, packages: list[str]) -> dict:
    model = {"format": format, "uri": f"file:{place}", "environment": {"packages": packages}}
    spec = {"model": model, "replicas": 1, "endpoint": f"/v1/{name}"}
    return {"apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("format", "kind", "file", "packages"),
    [
        ("sklearn", "joblib", "model.joblib", SKLEARN),
        ("sklearn", "columns", "model.joblib", COLUMNS),
        ("xgboost", "xgboost", "model.ubj", XGBOOST),
        ("xgboost", "xgboost", "model.json", XGBOOST),
        ("xgboost", "xgboost", "model.bst", XGBOOST),
        ("lightgbm", "lightgbm", "model.joblib", LIGHTGBM),
        ("mlflow", "mlflow", "model", MLFLOW),
    ],
)
def test_a_model_needs_no_card(installed, trained, tmp_path, format, kind, file, packages):
    # Keras, TensorFlow and PyTorch: test_networks.py.
    name = f"{kind}-{Path(file).suffix.removeprefix('.') or 'folder'}"
    installed.apply(declared(name, format, trained.copy(kind, tmp_path / file), packages))
    installed.run("wait", name, "--timeout", "170s")

    def answer(first: float) -> int:
        status, _, body = installed.post(f"/v1/{name}", {"features": [first, 0.1, 0.1]})
        assert status == 200, body
        return json.loads(body)["prediction"]

    assert (answer(0.01), answer(0.99)) == (0, 1)
    wrong = []
    callers = [threading.Thread(target=lambda at=at: wrong.extend([at] if answer(at) != int(at > 0.5) else [])) for at in (0.05, 0.95) * 16]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong, "rows of one call belong to their requests"
    if kind == "columns":
        status, _, body = installed.post(f"/v1/{name}", {"features": [0.1, 0.1]})
        assert (status, "a row has 3 columns: age, height, weight" in body.decode()) == (422, True), body


def test_packages_are_those_that_the_models_folder_lists(installed, trained, tmp_path):
    """An MLflow model writes them down; what is declared wins."""
    place = trained.copy("mlflow", tmp_path / "model")
    # MLflow's own list has all of MLflow, which takes long to fetch.
    (place / "requirements.txt").write_text("# as trained\n" + "\n".join(MLFLOW) + "\n")
    (place / "other.txt").write_text("scikit-learn>=1\n")
    document = declared("listed", "mlflow", place, [])
    document["spec"]["model"]["environment"] = {}
    installed.apply(document)
    installed.run("wait", "listed", "--timeout", "170s")
    status, _, body = installed.post("/v1/listed", {"features": [0.99, 0.1, 0.1]})
    assert (status, json.loads(body)["prediction"]) == (200, 1), body
    # What is there can be declared again, from what `get` prints.
    installed.run("diff", "-f", "-", stdin=installed.run("get", "listed", "-o", "yaml"))
    document["spec"]["model"]["environment"] = {"requirements": "other.txt"}
    document["metadata"]["name"] = "loose"
    installed.apply(document)
    installed.run("wait", "loose", "--timeout", "170s", code=1)
    assert "other.txt line 1" in installed.run("describe", "loose")


def test_an_environment_is_checked_before_anything_is_fetched(installed):
    for format, environment, said in (
        ("pytorch", {}, "which packages it needs"),
        ("sklearn", {"python": "3.7"}, "no version of Python"),
        ("sklearn", {"packages": ["--index-url=https://example.org/?a==1"]}, "--package-index"),
        ("sklearn", {"requirements": "../requirements.txt"}, "no path in the artifact"),
        ("sklearn", {"packages": ["scikit-learn"]}, "is not pinned"),
        ("onnx", {}, "an environment is for sklearn"),
    ):
        document = declared("m", format, Path("/nowhere"), [])
        document["spec"]["model"]["environment"] = environment
        document["spec"].pop("endpoint")
        installed.run("apply", "-f", "-", stdin=json.dumps(document), code=4)
        assert said in installed.stderr, installed.stderr


def test_an_inference_service_of_kserve_is_served(installed, trained, tmp_path):
    folder = tmp_path / "iris"
    folder.mkdir()
    trained.copy("joblib", folder / "model.joblib")
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "service"},
        "spec": {"predictor": {"serviceAccountName": "sa", "sklearn": {"storageUri": f"file://{folder}"}}},
    }
    installed.run("apply", "-f", "-", stdin=json.dumps(service))
    installed.run("wait", "service", "--timeout", "170s")
    assert "spec.predictor.serviceAccountName" in installed.run("describe", "service")
    tensor = {"name": "input-0", "shape": [2, 3], "datatype": "FP64", "data": [0.01, 0.1, 0.1, 0.99, 0.1, 0.1]}
    status, _, body = installed.post("/v2/models/service/infer", {"inputs": [tensor]})
    assert status == 200, body
    (output,) = json.loads(body)["outputs"]
    assert output == {"name": "prediction", "datatype": "INT64", "shape": [2], "data": [0, 1]}
    # As clients of other servers ask: by their names, and in 32 bits.
    asked = {"inputs": [tensor | {"name": "predict", "datatype": "FP32"}], "outputs": [{"name": "predict"}]}
    status, _, body = installed.post("/v2/models/service/infer", asked)
    assert status == 200 and json.loads(body)["outputs"][0] == output | {"name": "predict"}, body
    # What is there can be declared again, as it was written and as it is kept.
    installed.run("diff", "-f", "-", stdin=json.dumps(service))
    (folder / "second.joblib").write_bytes(b"")
    service["metadata"]["name"] = "two"
    installed.run("apply", "-f", "-", stdin=json.dumps(service))
    installed.run("wait", "two", "--timeout", "170s", code=1)
    assert "the folder must hold one model" in installed.run("describe", "two")


def test_forests_predict_what_their_library_predicts():
    """Tests that the package's own suite leaves out: there is no scikit-learn in its environment."""
    tests = Path(__file__).parents[2] / "python" / "berth" / "tests"
    done = python("-m", "unittest", "test_forests", cwd=tests, capture_output=True, text=True)
    assert done.returncode == 0 and "skipped" not in done.stderr, done.stderr
