"""Builds the ONNX graph of a BERT sentence encoder (mean pooling, unit length) from its published weights.

    python transformer_to_onnx.py FOLDER_WITH_SAFETENSORS_AND_CONFIG OUTPUT.onnx

Only numpy, onnx and safetensors are needed. The architecture is the published one of BERT (Devlin et al. 2018).
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file


class Graph:
    """Nodes and constants, added as they are used."""

    def __init__(self):
        self.nodes, self.constants = [], {}

    def constant(self, name, value):
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def op(self, kind, *inputs, **attributes):
        output = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output


def build(config: dict, weights: dict) -> onnx.ModelProto:
    graph = Graph()
    op, constant = graph.op, graph.constant
    width, heads, epsilon = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]
    integers = lambda name, *values: constant(name, np.array(values, dtype=np.int64))
    one = constant("one", np.float32(1))

    def linear(x, name):
        product = op("MatMul", x, constant(f"{name}.weight.T", weights[f"{name}.weight"].T))
        return op("Add", product, constant(f"{name}.bias", weights[f"{name}.bias"]))

    def normalize(x, name):
        scale, shift = (constant(f"{name}.{part}", weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return op("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)

    def split(x, order):
        return op("Transpose", op("Reshape", x, integers("heads", 0, 0, heads, width // heads)), perm=order)

    def gelu(x):
        error = op("Erf", op("Mul", x, constant("sqrt_half", np.float32(0.5**0.5))))
        return op("Mul", op("Mul", x, constant("half", np.float32(0.5))), op("Add", error, one))

    length = op("Squeeze", op("Shape", "input_ids", start=1, end=2), integers("first", 0))
    positions = op("Range", constant("start", np.int64(0)), length, constant("step", np.int64(1)))
    tables = [("word", "input_ids"), ("token_type", "token_type_ids"), ("position", positions)]
    words, kinds, places = (
        op("Gather", constant(f"{table}_table", weights[f"embeddings.{table}_embeddings.weight"]), ids) for table, ids in tables
    )
    x = normalize(op("Add", op("Add", words, kinds), places), "embeddings.LayerNorm")

    mask = op("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = op("Mul", op("Sub", one, op("Unsqueeze", mask, integers("axes_heads", 1, 2))), constant("far", np.float32(-1e9)))
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        query = split(linear(x, f"{name}.attention.self.query"), [0, 2, 1, 3])
        key = split(linear(x, f"{name}.attention.self.key"), [0, 2, 3, 1])
        value = split(linear(x, f"{name}.attention.self.value"), [0, 2, 1, 3])
        scores = op("Mul", op("MatMul", query, key), constant("scale", np.float32((width // heads) ** -0.5)))
        attended = op("MatMul", op("Softmax", op("Add", scores, hidden), axis=-1), value)
        joined = op("Reshape", op("Transpose", attended, perm=[0, 2, 1, 3]), integers("joined", 0, 0, width))
        x = normalize(op("Add", linear(joined, f"{name}.attention.output.dense"), x), f"{name}.attention.output.LayerNorm")
        inner = gelu(linear(x, f"{name}.intermediate.dense"))
        x = normalize(op("Add", linear(inner, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")

    weight = op("Unsqueeze", mask, integers("axes_width", 2))
    total = op("ReduceSum", op("Mul", x, weight), integers("axis_tokens", 1), keepdims=0)
    mean = op("Div", total, op("ReduceSum", weight, integers("axis_tokens", 1), keepdims=0))
    graph.nodes.append(helper.make_node("LpNormalization", [mean], ["sentence_embedding"], axis=-1, p=2))

    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in names]
    outputs = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", width])]
    made = helper.make_graph(graph.nodes, "sentence-encoder", inputs, outputs, list(graph.constants.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def main(folder: Path, out: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    weights = {name.removeprefix("bert."): array for name, array in load_file(folder / "model.safetensors").items()}
    weights = {name: array if array.dtype == np.int64 else array.astype(np.float32) for name, array in weights.items()}
    model = build(config, weights)
    onnx.checker.check_model(model)
    onnx.save(model, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
