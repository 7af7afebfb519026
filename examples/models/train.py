"""Trains the example models and writes them as ONNX, with a request for each in the JSON form of the protocol.

    python train.py OUTPUT_FOLDER

Everything is trained on data that ships with scikit-learn; nothing is downloaded.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

OPSET = 17

REVIEWS = {
    "positive": ["a great and lovely film", "wonderful acting, great fun", "I loved every minute", "brilliant and moving",
                 "what a good story", "excellent, warm and funny", "the best evening in years", "charming and well made"],
    "negative": ["a dull and awful film", "terrible acting, no fun", "I hated every minute", "boring and far too long",
                 "what a bad story", "poor, cold and sad", "the worst evening in years", "clumsy and badly made"],
}


def save(folder: Path, name: str, model: onnx.ModelProto, request: dict) -> None:
    onnx.checker.check_model(model)
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / f"{name}.json").write_text(json.dumps(request, indent=1) + "\n")
    print(f"  {name}.onnx  {len(model.SerializeToString()):,} bytes")


def tensor(name: str, datatype: str, array) -> dict:
    array = np.asarray(array)
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}


def tabular(estimator, x, y):
    estimator.fit(x, y)
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "classes_") else None
    return convert_sklearn(estimator, initial_types=[("X", FloatTensorType([None, x.shape[1]]))], options=options, target_opset=OPSET)


def sentiment():
    texts = [text for group in REVIEWS.values() for text in group]
    labels = [label for label, group in REVIEWS.items() for _ in group]
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression(C=10)).fit(texts, labels)
    # The default locale of the tokenizer node, en_US.UTF-8, is missing on many servers; "C" is everywhere.
    options = {TfidfVectorizer: {"locale": "C"}, LogisticRegression: {"zipmap": False}}
    return convert_sklearn(pipeline, initial_types=[("text", StringTensorType([None, 1]))], target_opset=OPSET, options=options)


def convolutions(seed: int = 0) -> onnx.ModelProto:
    """A small image network: four convolutions on 3x64x64, then ten scores. Its weights are random: it is for timing."""
    random, nodes, weights, source, channels = np.random.default_rng(seed), [], [], "image", 3
    for layer, width in enumerate((16, 32, 64, 64)):
        weights.append(numpy_helper.from_array((random.standard_normal((width, channels, 3, 3)) / (3 * channels**0.5)).astype(np.float32), f"w{layer}"))
        nodes.append(helper.make_node("Conv", [source, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1], strides=[1 + (layer > 0)] * 2))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        source, channels = f"r{layer}", width
    weights.append(numpy_helper.from_array((random.standard_normal((channels, 10)) / channels**0.5).astype(np.float32), "head"))
    nodes.append(helper.make_node("GlobalAveragePool", [source], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    nodes.append(helper.make_node("MatMul", ["flat", "head"], ["scores"]))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 64, 64])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "convolutions", [image], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 8
    return model


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    flowers = {"inputs": [tensor("X", "FP32", x[[0, 60, 120]].round(2).tolist())]}
    save(folder, "iris", tabular(LogisticRegression(max_iter=1000), x, y), flowers)
    # Another model under the same contract, for trying an update.
    save(folder, "iris-v2", tabular(RandomForestClassifier(n_estimators=20, random_state=0), x, y), flowers)
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    digits = {"inputs": [tensor("X", "FP32", x[[0, 1]])]}
    save(folder, "digits-forest", tabular(RandomForestClassifier(n_estimators=60, random_state=0), x, y), digits)
    save(folder, "digits-mlp", tabular(MLPClassifier((64,), max_iter=300, random_state=0), x, y), digits)
    x, y = load_diabetes(return_X_y=True)
    x = x.astype(np.float32)
    save(folder, "diabetes", tabular(GradientBoostingRegressor(random_state=0), x, y), {"inputs": [tensor("X", "FP32", x[[0, 1]].round(4).tolist())]})
    save(folder, "sentiment", sentiment(), {"inputs": [tensor("text", "BYTES", [["a great film, I loved it"], ["awful and boring"]])]})
    save(folder, "convolutions", convolutions(), {"inputs": [tensor("image", "FP32", np.zeros((1, 3, 64, 64)).tolist())]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
