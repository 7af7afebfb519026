"""Models of usual frameworks without a card, with the real packages of the index."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

SKLEARN = ["scikit-learn==1.7.2", "joblib==1.5.2", "numpy==2.3.4"]
COLUMNS = [*SKLEARN, "pandas==2.3.3"]
XGBOOST = ["xgboost-cpu==3.1.1", "numpy==2.3.4"]
LIGHTGBM = ["lightgbm==4.6.0", *SKLEARN]
MLFLOW = ["mlflow-skinny==3.6.0", "scikit-learn==1.7.2", "numpy==2.3.4", "pandas==2.3.3", "cloudpickle==3.1.2"]

# Makes the models in the environment that serves them: 3 features, the class is whether the first is above 0.5.
TRAIN = """
import sys, numpy
rng = numpy.random.default_rng(0)
X = rng.random((200, 3)); y = (X[:, 0] > 0.5).astype(int)
if sys.argv[1] == "xgboost":
    import xgboost
    booster = xgboost.train({"objective": "multi:softmax", "num_class": 2}, xgboost.DMatrix(X, y), 10)
    # Its form is that of the name's ending.
    booster.save_model(sys.argv[2])
    sys.exit()
if sys.argv[1] == "lightgbm":
    import joblib, lightgbm
    joblib.dump(lightgbm.LGBMClassifier(n_estimators=20, verbose=-1).fit(X, y), sys.argv[2])
    sys.exit()
from sklearn.linear_model import LogisticRegression
model = LogisticRegression(C=1000)
if sys.argv[1] == "columns":
    # Fitted on a data frame, of which it picks columns by name.
    import pandas
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    X = pandas.DataFrame(X, columns=["age", "height", "weight"])
    model = make_pipeline(ColumnTransformer([("kept", "passthrough", ["age", "weight"])]), model)
model = model.fit(X, y)
if sys.argv[1] != "mlflow":
    import joblib; joblib.dump(model, sys.argv[2])
else:
    import mlflow.sklearn
    from mlflow.models import infer_signature
    mlflow.sklearn.save_model(model, sys.argv[2], signature=infer_signature(X, model.predict(X)))
"""


def trained(kind: str, packages: list[str], place: Path) -> Path:
    """Runs the training with `uv`, which the tests have anyway."""
    uv = os.environ["BERTH_UV"]
    pins = [part for package in packages for part in ("--with", package)]
    subprocess.run([uv, "run", "--no-project", "--python", "3.11", *pins, "python", "-c", TRAIN, kind, str(place)], check=True, timeout=600)
    return place


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
def test_a_model_needs_no_card(berth, tmp_path, format, kind, file, packages):
    # Keras, TensorFlow and PyTorch: test_networks.py.
    place = trained(kind, packages, tmp_path / file)
    berth.start()
    berth.apply(declared("above", format, place, packages))
    berth.run("wait", "above", "--timeout", "170s")

    def answer(first: float) -> int:
        status, _, body = berth.post("/v1/above", {"features": [first, 0.1, 0.1]})
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
        status, _, body = berth.post("/v1/above", {"features": [0.1, 0.1]})
        assert (status, "a row has 3 columns: age, height, weight" in body.decode()) == (422, True), body


def test_packages_are_those_that_the_models_folder_lists(berth, tmp_path):
    """An MLflow model writes them down; what is declared wins."""
    place = trained("mlflow", MLFLOW, tmp_path / "model")
    # MLflow's own list has all of MLflow, which takes long to fetch.
    (place / "requirements.txt").write_text("# as trained\n" + "\n".join(MLFLOW) + "\n")
    (place / "other.txt").write_text("scikit-learn>=1\n")
    document = declared("above", "mlflow", place, [])
    document["spec"]["model"]["environment"] = {}
    berth.start()
    berth.apply(document)
    berth.run("wait", "above", "--timeout", "170s")
    status, _, body = berth.post("/v1/above", {"features": [0.99, 0.1, 0.1]})
    assert (status, json.loads(body)["prediction"]) == (200, 1), body
    # What is there can be declared again, from what `get` prints.
    berth.run("diff", "-f", "-", stdin=berth.run("get", "above", "-o", "yaml"))
    document["spec"]["model"]["environment"] = {"requirements": "other.txt"}
    document["metadata"]["name"] = "loose"
    berth.apply(document)
    berth.run("wait", "loose", "--timeout", "170s", code=1)
    assert "other.txt line 1" in berth.run("describe", "loose")


def test_an_environment_is_checked_before_anything_is_fetched(berth):
    berth.start()
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
        berth.run("apply", "-f", "-", stdin=json.dumps(document), code=4)
        assert said in berth.stderr, berth.stderr


def test_an_inference_service_of_kserve_is_served(berth, tmp_path):
    folder = tmp_path / "iris"
    folder.mkdir()
    trained("joblib", SKLEARN, folder / "model.joblib")
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "above"},
        "spec": {"predictor": {"serviceAccountName": "sa", "sklearn": {"storageUri": f"file://{folder}"}}},
    }
    berth.start()
    berth.run("apply", "-f", "-", stdin=json.dumps(service))
    berth.run("wait", "above", "--timeout", "170s")
    assert "spec.predictor.serviceAccountName" in berth.run("describe", "above")
    tensor = {"name": "input-0", "shape": [2, 3], "datatype": "FP64", "data": [0.01, 0.1, 0.1, 0.99, 0.1, 0.1]}
    status, _, body = berth.post("/v2/models/above/infer", {"inputs": [tensor]})
    assert status == 200, body
    (output,) = json.loads(body)["outputs"]
    assert output == {"name": "prediction", "datatype": "INT64", "shape": [2], "data": [0, 1]}
    # As clients of other servers ask: by their names, and in 32 bits.
    asked = {"inputs": [tensor | {"name": "predict", "datatype": "FP32"}], "outputs": [{"name": "predict"}]}
    status, _, body = berth.post("/v2/models/above/infer", asked)
    assert status == 200 and json.loads(body)["outputs"][0] == output | {"name": "predict"}, body
    # What is there can be declared again, as it was written and as it is kept.
    berth.run("diff", "-f", "-", stdin=json.dumps(service))
    (folder / "second.joblib").write_bytes(b"")
    service["metadata"]["name"] = "two"
    berth.run("apply", "-f", "-", stdin=json.dumps(service))
    berth.run("wait", "two", "--timeout", "170s", code=1)
    assert "the folder must hold one model" in berth.run("describe", "two")
