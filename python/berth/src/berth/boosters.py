"""Predictions of an XGBoost booster by the library's C interface.

``Booster.inplace_predict`` spends four fifths of its time for one row on its way to the library, and there on making a
matrix object that it throws away. Here the object is kept. The function, its settings and its results are the same,
which is tried when the model is loaded: where anything differs, the booster's own method is called.
"""

from __future__ import annotations

import ctypes
import json
import threading
from typing import Any, Callable, Dict, List

#: Versions whose functions take the arguments given here: from the first one to before the last. Others are not tried, since a
#: wrong argument ends the process.
_KNOWN = ((1, 7), (4, 0))

#: Types of numbers that go as they are. What numpy calls others, the booster's own method sees to.
_TYPES = frozenset(["<f4", "<f8", "<i4", "<i8"])


def in_place(booster: Any) -> Callable[[Any], Any]:
    """A function from a table of numbers to what ``booster.inplace_predict`` gives for it."""
    plain: Callable[[Any], Any] = booster.inplace_predict
    try:
        direct = InPlace(booster)
        same = all(_same(direct.result(table), plain(table)) for table in _samples(direct.columns))
    except Exception:
        # A library that lacks something.
        return plain
    return direct.predict if same else plain


class InPlace:
    """The booster behind a function of the library that was looked up once, with its arguments."""

    def __init__(self, booster: Any) -> None:
        import xgboost
        from xgboost import core

        version = tuple(int(part) for part in xgboost.__version__.split(".")[:2])
        if not _KNOWN[0] <= version < _KNOWN[1]:
            raise RuntimeError("another version of the library")
        self._booster = booster
        #: Columns of its tables.
        self.columns = int(booster.num_features())
        self._call = core._LIB.XGBoosterPredictFromDense
        # The object and the memory of the results are the booster's, and one call's at a time.
        self._turn = threading.Lock()
        self._matrix = ctypes.c_void_p()
        if core._LIB.XGProxyDMatrixCreate(ctypes.byref(self._matrix)) != 0:
            raise RuntimeError("no matrix object")
        settings: Dict[str, Any] = dict(type=0, training=False, iteration_begin=0, iteration_end=0)
        settings.update(missing=float("nan"), strict_shape=False, cache_id=0)
        self._settings = json.dumps(settings).encode()
        self._shape = ctypes.POINTER(ctypes.c_uint64)()
        self._dimensions = ctypes.c_uint64()
        self._results = ctypes.POINTER(ctypes.c_float)()
        self._out = [ctypes.byref(part) for part in (self._shape, self._dimensions, self._results)]

    def predict(self, rows: Any) -> Any:
        """The predictions for a table; the booster's own method sees to what is none, and says what is wrong."""
        result = self.result(rows)
        return self._booster.inplace_predict(rows) if result is None else result

    def result(self, rows: Any) -> Any:
        """The predictions for a table, or ``None``."""
        import numpy

        plain = type(rows) is numpy.ndarray and rows.ndim == 2 and rows.dtype.str in _TYPES
        in_order = plain and rows.flags.c_contiguous and rows.flags.aligned
        if not in_order or rows.shape[1] != self.columns or not len(rows):
            return None
        about = '{"data":[%d,true],"shape":[%d,%d],"strides":null,"typestr":"%s","version":3}' % (
            rows.__array_interface__["data"][0],
            rows.shape[0],
            rows.shape[1],
            rows.dtype.str,
        )
        with self._turn:
            if self._call(self._booster.handle, about.encode(), self._settings, self._matrix, *self._out) != 0:
                return None
            shape = self._shape[: self._dimensions.value]
            count = 1
            for length in shape:
                count *= length
            found = ctypes.string_at(self._results, 4 * count)
        # A copy that can be written to, as the booster's own.
        return numpy.frombuffer(bytearray(found), dtype=numpy.float32).reshape(shape)


def _samples(columns: int) -> List[Any]:
    """Tables of several types and lengths, one after the other with the same object."""
    import numpy

    ramp = numpy.linspace(-3, 3, 5 * columns).reshape(5, columns)
    return [ramp[:1], ramp, ramp[:2].astype(numpy.float32), ramp.astype(numpy.int64)]


def _same(one: Any, other: Any) -> bool:
    import numpy

    return one is not None and one.dtype == other.dtype and numpy.array_equal(one, other)
