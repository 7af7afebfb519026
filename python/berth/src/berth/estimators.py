"""Models without a card: how rows come in, how predictions go out, and how each framework's files are read.

A request is ``{"features": [numbers]}``, an answer ``{"prediction": ...}``. Every loader gives an object that runs the
rows of many requests in one call.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, List

from . import loaders, networks
from .errors import InvalidModel
from .marks import arrays, batched
from .rows import Rows, fitted, typed


@batched
@arrays
def to_rows(requests: List[Any]) -> List[Any]:
    """One row of numbers for each request."""
    return [request["features"] for request in requests]


@batched
def to_answer(outputs: List[Any]) -> List[Any]:
    """Predictions for the rows, numpy's as Python's own; of a model with several outputs by their names."""
    return [{"prediction": _plain(output)} for output in outputs]


def _plain(output: Any) -> Any:
    if isinstance(output, dict):
        return {str(name): _plain(part) for name, part in output.items()}
    return output.tolist() if hasattr(output, "tolist") else output


PICKLES = (".joblib", ".pkl", ".pickle")


def one_file(path: str, *endings: str) -> str:
    """The model in a folder, as KServe lays it out: one file with such an ending. A file is itself."""
    if not os.path.isdir(path):
        return path
    # Its packages may be listed beside it, in a file that ends as LightGBM's text form does.
    found = [name for name in sorted(os.listdir(path)) if name.endswith(endings) and name != "requirements.txt"]
    if len(found) != 1:
        there = f"there are {len(found)}: {', '.join(found)}" if found else "there is none"
        raise InvalidModel(f"the folder must hold one model, a file with the ending {', '.join(endings)}; {there}")
    return os.path.join(path, found[0])


def reads(framework: str) -> Callable[[Callable[[str], Any]], Callable[[str], Any]]:
    """Marks a loader, whose errors say that the artifact is not what it should be."""

    def mark(load: Callable[[str], Any]) -> Callable[[str], Any]:
        return functools.wraps(load)(lambda path: loaders.read(framework, load, path))

    return mark


@reads("sklearn")
def load_sklearn(path: str) -> Any:
    """An estimator in a joblib or pickle file."""
    rows: Rows = loaders.default("sklearn")(one_file(path, *PICKLES))
    return rows.of_callers(getattr(rows.model, "n_features_in_", None))


@reads("xgboost")
def load_xgboost(path: str) -> Any:
    """A booster in XGBoost's own form, or an estimator in a pickle."""
    rows: Rows = loaders.default("xgboost")(one_file(path, ".ubj", ".json", ".bst", *PICKLES))
    booster = hasattr(rows.model, "num_features")
    return rows.of_callers(rows.model.num_features() if booster else getattr(rows.model, "n_features_in_", None))


@reads("lightgbm")
def load_lightgbm(path: str) -> Any:
    """A booster in LightGBM's text form, or an estimator in a pickle."""
    path = one_file(path, ".txt", ".bst", *PICKLES)
    if path.endswith(PICKLES):
        return load_sklearn(path)
    import lightgbm

    booster = lightgbm.Booster(model_file=path)
    return Rows(booster, booster.predict).of_callers(booster.num_feature())


@reads("pytorch")
def load_pytorch(path: str) -> Any:
    """A TorchScript module, or a whole module in a pickle."""
    return networks.pytorch_rows(one_file(path, ".pt", ".pth"))


@reads("tensorflow")
def load_tensorflow(path: str) -> Any:
    """A Keras file, a SavedModel folder, or an archive of one."""
    return loaders.default("tensorflow")(path)


@reads("mlflow")
def load_mlflow(path: str) -> Any:
    """A folder that MLflow wrote, by its python_function flavour."""
    import mlflow.pyfunc
    import pandas

    model = mlflow.pyfunc.load_model(path)
    schema = model.metadata.get_input_schema()
    tensors = list(schema.inputs) if schema is not None and schema.is_tensor_spec() else []
    networks.one_input([tensor.name for tensor in tensors])

    def predict(rows: Any) -> Any:
        if tensors:
            name, shape = tensors[0].name, [None if length < 0 else length for length in tensors[0].shape[1:]]
            table = fitted(typed(rows, tensors[0].type), shape)
            data: Any = table if name is None else {name: table}
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

    columns = schema is not None and not tensors
    return Rows(model, predict).of_callers(len(schema.inputs) if columns else None)
