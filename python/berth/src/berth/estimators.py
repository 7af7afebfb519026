"""Models without a card: how rows come in, how predictions go out, and how each framework's files are read.

A request is ``{"features": [numbers]}``, an answer ``{"prediction": ...}``. Every loader gives an object that runs the
rows of many requests in one call.
"""

from __future__ import annotations

from typing import Any

from . import loaders
from .loaders import Rows


def to_rows(request: Any, config: Any = None) -> Any:
    """One row of numbers for each request."""
    return request["features"]


def to_answer(output: Any, config: Any = None) -> Any:
    """What the model predicts for the row."""
    return {"prediction": output}


def load_sklearn(path: str) -> Any:
    """An estimator in a joblib or pickle file."""
    return loaders.default("sklearn")(path)


def load_xgboost(path: str) -> Any:
    """A booster in XGBoost's own form, or an estimator in a pickle."""
    return loaders.default("xgboost")(path)


def load_lightgbm(path: str) -> Any:
    """A booster in LightGBM's text form, or an estimator in a pickle."""
    if path.endswith((".pkl", ".pickle", ".joblib")):
        return load_sklearn(path)
    import lightgbm

    booster = lightgbm.Booster(model_file=path)
    return Rows(booster, booster.predict)


def load_pytorch(path: str) -> Any:
    """A TorchScript module, or a whole module in a pickle."""
    import torch

    module = loaders.default("pytorch")(path).module

    def predict(rows: Any) -> Any:
        with torch.no_grad():
            result = module(torch.as_tensor(rows, dtype=torch.float32))
        return result.numpy()

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
