"""Models of the usual frameworks, for cards whose code has no loading function.

Each loader gives an object whose ``predict`` takes the list of what preprocessing gave and returns a list: one
result per item. An item that is one row (a flat list or a one-dimensional array) gives the result of that row; an
item that is a table of rows gives the results of all of them.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List

from . import boosters, forests, networks
from .errors import CardError, InvalidModel, RequestError, lacks_memory, message_of
from .marks import batched
from .rows import Rows, counted


def default(framework: str) -> Callable[[str], Any]:
    """The loader of a framework."""
    return _LOADERS[framework]


def has_default(framework: str) -> bool:
    """Whether cards of a framework need no loading function."""
    return framework in _LOADERS


def read(framework: str, load: Callable[[str], Any], path: str) -> Any:
    """The model in an artifact. Whatever a framework's own reader raises says that the artifact is not what it should be."""
    try:
        return load(path)
    except Exception as error:
        if isinstance(error, (ImportError, CardError)) or lacks_memory(error):
            raise
        message = "{} cannot read the artifact: {}: {}".format(framework, type(error).__name__, message_of(error))
        raise InvalidModel(message) from error


#: Packages whose objects take a table of rows and give a result for each.
_ESTIMATORS = frozenset(["sklearn", "xgboost", "lightgbm", "catboost", "imblearn"])


def is_estimator(model: Any) -> bool:
    """Whether a loading function gave an estimator, whose own ``predict`` takes one table."""
    home = type(model).__module__.partition(".")[0]
    return home in _ESTIMATORS and callable(getattr(model, "predict", None))


class Tables:
    """Calls an estimator with the tables of all items together where they are tables, else item by item."""

    def __init__(self, model: Any) -> None:
        forests.speed_up(model)
        #: The estimator.
        self.model = model

    @batched
    def predict(self, items: List[Any]) -> List[Any]:
        """Runs all items, in one call where that gives the same."""
        together = self._together(items) if len(items) > 1 else None
        if together is None:
            return [self.model.predict(item) for item in items]
        table, lengths = together
        results, split, at = self.model.predict(table), [], 0
        counted(results, len(table))
        for length in lengths:
            split.append(results[at : at + length])
            at += length
        return split

    @staticmethod
    def _together(items: List[Any]) -> Any:
        """All rows as one table and the number of rows of each item; None where that is no table."""
        if all(hasattr(item, "iloc") and hasattr(item, "columns") for item in items):
            import pandas

            first = list(items[0].columns)
            same = all(list(item.columns) == first and (item.dtypes == items[0].dtypes).all() for item in items)
            return (pandas.concat(items, ignore_index=True), [len(item) for item in items]) if same else None
        if any(hasattr(item, "iloc") for item in items):
            return None
        import numpy

        try:
            tables = [numpy.asarray(item) for item in items]
        except ValueError:
            return None
        width = tables[0].shape[1:]
        numbers = all(table.ndim == 2 and table.dtype.kind in "biuf" and table.shape[1:] == width for table in tables)
        return (numpy.concatenate(tables), [len(table) for table in tables]) if numbers else None


def _sklearn(path: str) -> Any:
    try:
        import joblib

        model = joblib.load(path)
    except ImportError:
        import pickle

        with open(path, "rb") as file:
            model = pickle.load(file)
    if not callable(getattr(model, "predict", None)):
        kind = type(model).__name__
        raise InvalidModel("the artifact holds a {}, which has no `predict`: write a `load` function".format(kind))
    forests.speed_up(model)
    return Rows(model, _by_column(model))


def _by_column(model: Any) -> Callable[[Any], Any]:
    """The estimator's ``predict``. One that was fitted on a data frame may pick columns by name: it gets a data frame with
    the same columns, in their order of training, where pandas is installed."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return model.predict
    try:
        import pandas
    except ImportError:
        return model.predict

    def predict(rows: Any) -> Any:
        if hasattr(rows, "iloc"):
            return model.predict(rows)
        if rows.shape[1:] != (len(names),):
            told = ", ".join(map(str, names[:10])) + (", …" if len(names) > 10 else "")
            raise RequestError("a row has {} columns: {}".format(len(names), told))
        return model.predict(pandas.DataFrame(rows, columns=names))

    return predict


def _xgboost(path: str) -> Any:
    import xgboost

    if path.endswith((".pkl", ".pickle", ".joblib")):
        return _sklearn(path)
    booster = xgboost.Booster()
    booster.load_model(path)

    kind = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"]
    in_place = boosters.in_place(booster) if kind != "gblinear" and hasattr(booster, "inplace_predict") else None

    def predict(rows: Any) -> Any:
        # Rows of numbers are taken to be in the order of training, and predicted where they lie if the booster can: a
        # `DMatrix` costs more than a small batch. A data frame brings its own names.
        if in_place is not None and not hasattr(rows, "iloc"):
            return in_place(rows)
        names = None if hasattr(rows, "iloc") else booster.feature_names
        return booster.predict(xgboost.DMatrix(rows, feature_names=names))

    return Rows(booster, predict)


class Session:
    """An ONNX Runtime session: takes a mapping of input names to arrays, or one array where there is one input."""

    def __init__(self, path: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        providers = onnxruntime.get_available_providers()
        #: The session itself.
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        self._inputs = self.session.get_inputs()
        self._outputs = [output.name for output in self.session.get_outputs()]

    def predict(self, input: Any) -> Any:
        """Runs one item: its outputs by name, or the output where there is one."""
        import numpy

        if not isinstance(input, dict):
            if len(self._inputs) != 1:
                names = ", ".join(repr(one.name) for one in self._inputs)
                raise TypeError("the model has the inputs {}: preprocessing must return a dict of them".format(names))
            input = {self._inputs[0].name: input}
        feed: Dict[str, Any] = {}
        for one in self._inputs:
            if one.name in input:
                value = numpy.asarray(input[one.name], dtype=_ONNX_TYPES.get(one.type))
                # A single row for a model that takes rows.
                rank = len(one.shape) if one.shape is not None else value.ndim
                feed[one.name] = value[None] if value.ndim == rank - 1 else value
        outputs = self.session.run(None, feed)
        return outputs[0] if len(outputs) == 1 else dict(zip(self._outputs, outputs))


_ONNX_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
}


_LOADERS: Dict[str, Callable[[str], Any]] = {
    "sklearn": _sklearn,
    "xgboost": _xgboost,
    "onnx": Session,
    "pytorch": networks.pytorch,
    "tensorflow": networks.tensorflow,
}
