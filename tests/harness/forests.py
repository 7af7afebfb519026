"""Random forests as ONNX files, each with content of its own: what paging is tried with. Loaded, each takes several times its
file, which nobody can tell from the file.

`python -m harness.forests FOLDER COUNT [TREES...]` writes them, with the numbers of trees in turn.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from onnx import TensorProto, helper

# Of each tree: 255 nodes.
DEPTH = 7
FEATURES = 8
REQUEST = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, FEATURES], "data": [0.5] * FEATURES}]}


def forest(trees: int):
    """A regressor of complete trees; `vary` makes others of it."""
    inner, nodes = 2**DEPTH - 1, 2 ** (DEPTH + 1) - 1
    each = range(nodes)
    leaves = range(inner, nodes)
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["X"],
        ["Y"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=[tree for tree in range(trees) for _ in each],
        nodes_nodeids=list(each) * trees,
        nodes_featureids=[number % FEATURES if number < inner else 0 for number in each] * trees,
        nodes_modes=["BRANCH_LEQ" if number < inner else "LEAF" for number in each] * trees,
        nodes_values=[0.5] * (nodes * trees),
        nodes_truenodeids=[2 * number + 1 if number < inner else 0 for number in each] * trees,
        nodes_falsenodeids=[2 * number + 2 if number < inner else 0 for number in each] * trees,
        target_treeids=[tree for tree in range(trees) for _ in leaves],
        target_nodeids=list(leaves) * trees,
        target_ids=[0] * (len(leaves) * trees),
        target_weights=[0.25] * (len(leaves) * trees),
    )
    wire = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, FEATURES])]
    out = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None, 1])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "forest", wire, out), opset_imports=imports, ir_version=8)


def vary(model, seed: int) -> bytes:
    """The same forest with other thresholds."""
    chance = random.Random(seed)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "nodes_values":
            attribute.floats[:] = [chance.random() for _ in range(len(attribute.floats))]
    return model.SerializeToString()


def write(folder: Path, count: int, trees: list[int]) -> list[Path]:
    """Writes so many, `forest-0.onnx` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {number: forest(number) for number in set(trees)}
    files = [folder / f"forest-{number}.onnx" for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes(vary(models[trees[number % len(trees)]], number))
    return files


if __name__ == "__main__":
    folder, count, *trees = sys.argv[1:]
    write(Path(folder), int(count), [int(number) for number in trees] or [100])
