"""Neural networks without a card, with the real frameworks.

Keras with JAX (150 MB of packages) always. TensorFlow and PyTorch come in gigabytes and are left out unless asked for:

    BERTH_TEST_TENSORFLOW=1 BERTH_TEST_PYTORCH=1 cargo xtask test --e2e -- -k test_networks

`1` takes the pins below; pins of your own (`"torch==2.9.1 numpy==2.3.4"`) take their place.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from harness.server import Berth
from test_formats import declared
from test_serve import serve  # noqa: F401: the fixture

KERAS = ["keras==3.10.0", "jax==0.4.30", "jaxlib==0.4.30", "numpy==2.0.2", "scipy==1.13.1", "h5py==3.14.0"]
TENSORFLOW = ["tensorflow-cpu==2.19.1", "keras==3.10.0", "numpy==2.1.3", "h5py==3.14.0"]
PYTORCH = ["torch==2.8.0", "numpy==2.3.4"]

# Weights that are set, so that answers are known: `dense` is a + 2b + 3c + 0.5.
KERAS_MODELS = """
import os, sys
os.environ.setdefault("KERAS_BACKEND", "jax")
import keras, numpy

def dense(layer, weights):
    layer.set_weights([numpy.array(weights, "float32"), numpy.array([0.5], "float32")])

for kind, path in zip(sys.argv[1::2], sys.argv[2::2]):
    # Names of layers are counted from the start.
    keras.utils.clear_session()
    if kind == "image":
        model = keras.Sequential([keras.Input((2, 2)), keras.layers.Flatten(), keras.layers.Dense(1)])
        dense(model.layers[-1], [[1], [2], [3], [4]])
    elif kind == "two":
        image = keras.Input((3,), name="image")
        one, other = keras.layers.Dense(1, name="one")(image), keras.layers.Dense(1, name="other")(image)
        model = keras.Model(image, [one, other])
        dense(model.get_layer("one"), [[1], [2], [3]])
        dense(model.get_layer("other"), [[-1], [-2], [-3]])
    elif kind == "pair":
        first, second = keras.Input((2,), name="first"), keras.Input((1,), name="second")
        model = keras.Model([first, second], keras.layers.Concatenate()([first, second]))
    else:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        dense(model.layers[-1], [[1], [2], [3]])
    model.export(path) if kind == "export" else model.save(path)
"""

SAVED_MODELS = """
import sys, tensorflow as tf
kind, path = sys.argv[1:]

class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float64, name="x")])
    def dense(self, x):
        return {"y": tf.linalg.matvec(x, tf.constant([1.0, 2.0, 3.0], tf.float64)) + 0.5}

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int32, name="x")])
    def places(self, x):
        return {"first": x[:, 0], "last": x[:, 2]}

model = Model()
signatures = {"serving_default": model.dense} if kind == "dense" else {"places": model.places}
tf.saved_model.save(model, path, signatures=signatures)
"""

TORCH_MODELS = """
import sys, torch
kind, path = sys.argv[1:]
linear = torch.nn.Linear(3, 1)
with torch.no_grad():
    linear.weight.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    linear.bias.fill_(0.5)
table = torch.nn.Embedding(10, 2)
with torch.no_grad():
    table.weight.copy_(torch.arange(20.0).reshape(10, 2))

class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = linear
    def forward(self, x):
        return {"y": self.linear(x), "first": x[:, 0]}

class Pair(torch.nn.Module):
    def forward(self, x):
        return x, x

if kind == "traced":
    torch.jit.trace(linear, torch.zeros(1, 3)).save(path)
elif kind == "double":
    torch.jit.script(linear.double()).save(path)
elif kind == "half":
    torch.jit.script(linear.bfloat16()).save(path)
elif kind == "places":
    torch.jit.script(torch.nn.Sequential(table, torch.nn.Flatten())).save(path)
elif kind == "named":
    torch.jit.script(Named()).save(path)
elif kind == "pair":
    torch.jit.script(Pair()).save(path)
elif kind == "pickled":
    torch.save(linear, path)
elif kind == "weights":
    torch.save(linear.state_dict(), path)
"""


def pins(name: str, usual: list[str]) -> list[str]:
    """The pins of a framework that is tested when it is asked for."""
    asked = os.environ.get(name, "")
    if not asked:
        pytest.skip(f"its packages are gigabytes: {name}=1 runs this")
    return usual if asked == "1" else asked.split()


def saved(script: str, packages: list[str], models: dict[str, Path]) -> None:
    """Saves models, a place for each kind, by their framework in the packages that serve them."""
    places = [part for kind, place in models.items() for part in (kind, str(place))]
    # A file, since TorchScript reads the source of what it compiles.
    program = next(iter(models.values())).parent / "save.py"
    program.write_text(script)
    with_pins = [part for package in packages for part in ("--with", package)]
    command = [os.environ["BERTH_UV"], "run", "--no-project", "--python", "3.11", *with_pins, "python", str(program), *places]
    subprocess.run(command, check=True, timeout=800)


class Served:
    """Models of one format on one server, each with the environment that all of them share."""

    def __init__(self, berth, format: str, packages: list[str]):
        self.berth, self.format, self.packages = berth, format, packages

    def declare(self, name: str, place: Path) -> None:
        self.berth.apply(declared(name, self.format, place, self.packages))

    def ready(self, name: str, place: Path) -> None:
        self.declare(name, place)
        # The first one waits for all packages.
        for _ in range(4):
            self.berth.run("wait", name, "--timeout", "170s", code=None)
            if self.berth.status(name)["phase"] == "Available":
                return
        raise AssertionError(self.berth.run("describe", name))

    def refused(self, name: str, place: Path) -> str:
        """What is said of a model that does not load."""
        self.declare(name, place)
        self.berth.run("wait", name, "--timeout", "170s", code=1)
        return self.berth.run("describe", name)

    def ask(self, name: str, *row: float) -> tuple[int, dict]:
        status, _, body = self.berth.post(f"/v1/{name}", {"features": list(row)})
        return status, json.loads(body)

    def predicts(self, name: str, *row: float):
        status, answer = self.ask(name, *row)
        assert status == 200, answer
        return answer["prediction"]

    def together(self, name: str, expected) -> None:
        """Rows that are asked at once are answered each with its own result."""
        wrong = []

        def call(number: int) -> None:
            found = self.predicts(name, number, 1, 1)
            if found != pytest.approx(expected(number)):
                wrong.append((number, found))

        callers = [threading.Thread(target=call, args=(number,)) for number in range(32)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not wrong


def test_keras_files_are_served_with_jax(serve, tmp_path):  # noqa: F811
    models = {kind: tmp_path / f"{kind}.keras" for kind in ("dense", "image", "two", "pair")}
    saved(KERAS_MODELS, KERAS, models)
    (tmp_path / "requirements.txt").write_text("\n".join(KERAS) + "\n")
    serve.start(str(models["dense"]))
    assert serve.pasted()["prediction"] == pytest.approx([0.5]), "the model itself says how long a row is"
    assert "requirements.txt" in serve.logged()
    # More on the same server, which has the packages.
    client = Berth(tmp_path)
    client.http, client.api = serve.http, serve.api
    keras = Served(client, "tensorflow", KERAS)
    assert keras.predicts("dense", 1, 1, 1) == pytest.approx([6.5])
    keras.together("dense", lambda number: [number + 5.5])
    status, answer = keras.ask("dense", 1, 1)
    assert (status, "a row has 2 numbers, and the model takes 3" in json.dumps(answer)) == (422, True), answer
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 1, 1, 0, 0, 0]}
    status, _, body = client.post("/v2/models/dense/infer", {"inputs": [tensor]})
    assert status == 200, body
    (output,) = json.loads(body)["outputs"]
    assert (output["shape"], output["data"]) == ([2, 1], pytest.approx([6.5, 0.5]))
    keras.ready("image", models["image"])
    assert keras.predicts("image", 1, 1, 1, 1) == pytest.approx([10.5]), "a row of 2 × 2"
    keras.ready("two", models["two"])
    assert keras.predicts("two", 1, 0, 0) == {"one": pytest.approx([1.5]), "other": pytest.approx([-0.5])}
    assert "the model has the inputs 'first', 'second'" in keras.refused("pair", models["pair"])


def test_saved_models_and_keras_files_are_served_with_tensorflow(berth, tmp_path):
    packages = pins("BERTH_TEST_TENSORFLOW", TENSORFLOW)
    file, old, exported, plain, versions = (tmp_path / name for name in ("dense.keras", "dense.h5", "exported", "plain", "versions"))
    keras = KERAS_MODELS.replace('"jax"', '"tensorflow"')
    saved(keras, packages, {"dense": file, "export": exported})
    saved(keras, packages, {"dense": old})
    saved(SAVED_MODELS, packages, {"dense": plain})
    # As TensorFlow Serving lays versions out.
    versions.mkdir()
    saved(SAVED_MODELS, packages, {"places": versions / "2"})
    berth.start()
    tensorflow = Served(berth, "tensorflow", packages)
    for name, place in (("file", file), ("old", old), ("exported", exported)):
        tensorflow.ready(name, place)
        tensorflow.together(name, lambda number: [number + 5.5])
    tensorflow.ready("plain", plain)
    tensorflow.together("plain", lambda number: number + 5.5)
    tensorflow.ready("versions", versions)
    assert tensorflow.predicts("versions", 4, 5, 6) == {"first": 4, "last": 6}
    assert tensorflow.ask("versions", 0.5, 5, 6)[0] == 422


def test_modules_are_served_with_pytorch(berth, tmp_path):
    packages = pins("BERTH_TEST_PYTORCH", PYTORCH)
    kinds = ("traced", "double", "half", "places", "named", "pair", "pickled", "weights")
    models = {kind: tmp_path / f"{kind}.pt" for kind in kinds}
    for kind, place in models.items():
        saved(TORCH_MODELS, packages, {kind: place})
    berth.start()
    pytorch = Served(berth, "pytorch", packages)
    for name in ("traced", "double", "half", "pickled"):
        pytorch.ready(name, models[name])
        pytorch.together(name, lambda number: [number + 5.5])
    pytorch.ready("places", models["places"])
    assert pytorch.predicts("places", 0, 3) == [0, 1, 6, 7]
    assert pytorch.ask("places", 0.5, 3)[0] == 422
    pytorch.ready("named", models["named"])
    assert pytorch.predicts("named", 2, 0, 0) == {"y": pytest.approx([2.5]), "first": 2}
    pytorch.ready("pair", models["pair"])
    status, answer = pytorch.ask("pair", 1, 2)
    assert status == 500 and "the module returned a tuple, not one tensor" in json.dumps(answer), answer
    assert "holds a OrderedDict, not a module" in pytorch.refused("weights", models["weights"])
