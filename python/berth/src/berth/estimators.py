"""Models without a card: how rows come in, how predictions go out, and how each framework's files are read.

A request is ``{"features": [numbers]}``, an answer ``{"prediction": ...}``. Every loader gives an object that runs the
rows of many requests in one call.
"""

from __future__ import annotations

import os
from typing import Any, List

from . import loaders
from .loaders import Rows
from .marks import arrays, batched


@batched
@arrays
def to_rows(requests: List[Any]) -> List[Any]:
    """One row of numbers for each request."""
    return [request["features"] for request in requests]


@batched
def to_answer(outputs: List[Any]) -> List[Any]:
    """Predictions for the rows, numpy's as Python's own."""
    return [{"prediction": output.tolist() if hasattr(output, "tolist") else output} for output in outputs]


PICKLES = (".joblib", ".pkl", ".pickle")


def one_file(path: str, *endings: str) -> str:
    """The model in a folder, as KServe lays it out: one file with such an ending. A file is itself."""
    if not os.path.isdir(path):
        return path
    found = [name for name in sorted(os.listdir(path)) if name.endswith(endings)]
    if len(found) != 1:
        there = f"there are {len(found)}: {', '.join(found)}" if found else "there is none"
        raise ValueError(f"the folder must hold one model, a file with the ending {', '.join(endings)}; {there}")
    return os.path.join(path, found[0])


def load_sklearn(path: str) -> Any:
    """An estimator in a joblib or pickle file."""
    return loaders.default("sklearn")(one_file(path, *PICKLES))


def load_xgboost(path: str) -> Any:
    """A booster in XGBoost's own form, or an estimator in a pickle."""
    return loaders.default("xgboost")(one_file(path, ".ubj", ".json", ".bst", *PICKLES))


def load_lightgbm(path: str) -> Any:
    """A booster in LightGBM's text form, or an estimator in a pickle."""
    path = one_file(path, ".txt", ".bst", *PICKLES)
    if path.endswith(PICKLES):
        return load_sklearn(path)
    import lightgbm

    booster = lightgbm.Booster(model_file=path)
    return Rows(booster, booster.predict)


def load_pytorch(path: str) -> Any:
    """A TorchScript module, or a whole module in a pickle."""
    import torch

    module = loaders.default("pytorch")(one_file(path, ".pt", ".pth")).module

    def predict(rows: Any) -> Any:
        with torch.no_grad():
            result = module(torch.as_tensor(rows, dtype=torch.float32))
        if not hasattr(result, "detach"):
            raise TypeError(
                "the module returned a {}, not one tensor with a result for each row: return that tensor alone, or "
                "write a model card, whose postprocessing takes what there is".format(type(result).__name__)
            )
        # A module may turn gradients on again, or compute elsewhere than on the processor.
        return result.detach().cpu().numpy()

    return Rows(module, predict)


def load_tensorflow(path: str) -> Any:
    """A Keras file, a SavedModel folder, or an archive of one."""
    return loaders.default("tensorflow")(path)


def load_mlflow(path: str) -> Any:
    """A folder that MLflow wrote, by its python_function flavour."""
    import mlflow.pyfunc
    import numpy
    import pandas

    model = mlflow.pyfunc.load_model(path)
    schema = model.metadata.get_input_schema()

    def predict(rows: Any) -> Any:
        if schema is not None and schema.is_tensor_spec():
            data: Any = numpy.asarray(rows, dtype=schema.inputs[0].type)
        else:
            data = pandas.DataFrame(rows)
            if schema is not None:
                if schema.has_input_names():
                    data.columns = schema.input_names()
                # MLflow refuses numbers of another width than it was shown.
                for name, column in zip(data.columns, schema.inputs):
                    data[name] = data[name].astype(column.type.to_numpy())
        result = model.predict(data)
        return result.to_numpy() if hasattr(result, "to_numpy") else result

    return Rows(model, predict)
