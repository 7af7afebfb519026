"""The rows of many requests in one call: put together before a model runs, and taken apart after it."""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional, Sequence

from .errors import RequestError
from .marks import batched


class Rows:
    """Calls a function that takes a table with the rows of all items together.

    The function returns one result for each row: an array, a list, or a mapping of such where a model has several
    outputs.
    """

    def __init__(self, model: Any, function: Callable[[Any], Any]) -> None:
        #: The framework's own object.
        self.model = model
        self._function = function

    def of_callers(self, width: Optional[int]) -> "Rows":
        """The same for rows that callers wrote: the model's error for rows of another length than its own is theirs."""
        function = self._function

        def predict(rows: Any) -> Any:
            try:
                return function(rows)
            except RequestError:
                raise
            except Exception as error:
                # Asked only now: some models take other lengths than they name.
                if rows.ndim != 2 or rows.shape[1] == width:
                    raise
                raise RequestError("a row has {} numbers, and the model takes {}".format(rows.shape[1], width)) from error

        return self if width is None else Rows(self.model, predict)

    @batched
    def predict(self, items: List[Any]) -> List[Any]:
        """Runs all items in one call."""
        import numpy

        if len(items) == 1 and hasattr(items[0], "iloc"):
            return [self._function(items[0])]
        rows = _rows(items)
        if rows is not None:
            results = self._function(rows)
            counted(results, len(rows))
            plain = isinstance(results, numpy.ndarray)
            return list(results) if plain else [_part(results, at, 1, True) for at in range(len(rows))]
        tables, flat = [], []
        for item in items:
            table = numpy.asarray(item)
            if table.ndim == 0:
                raise TypeError(
                    "preprocessing gave {!r:.80} for a model that takes rows of numbers: return a list of numbers, "
                    "or write a `load` function".format(item)
                )
            flat.append(table.ndim == 1)
            tables.append(table.reshape(1, -1) if table.ndim == 1 else table)
        results = self._function(tables[0] if len(tables) == 1 else numpy.concatenate(tables))
        counted(results, sum(len(table) for table in tables))
        split, at = [], 0
        for table, single in zip(tables, flat):
            split.append(_part(results, at, len(table), single))
            at += len(table)
        return split


def _rows(items: List[Any]) -> Any:
    """Items that are rows of the same length as one table; ``None``: others, which take longer."""
    import numpy

    first = items[0]
    if type(first) is not numpy.ndarray or first.ndim != 1:
        return None
    if len(items) == 1:
        return first.reshape(1, -1)
    shape = first.shape
    same = all(type(item) is numpy.ndarray and item.shape == shape for item in items)
    return numpy.concatenate(items).reshape(len(items), -1) if same else None


def counted(results: Any, rows: int) -> None:
    """Refuses results that are not one for each row: they would go to the wrong requests."""
    if isinstance(results, dict):
        for part in results.values():
            counted(part, rows)
        return
    shape = getattr(results, "shape", None)
    try:
        count = len(results) if shape is None else shape[0]
    except (TypeError, IndexError):
        kind = type(results).__name__
        raise TypeError("the model returned one {} for {} rows, not a result for each".format(kind, rows)) from None
    if count != rows:
        raise TypeError("the model returned {} results for {} rows, not one for each".format(count, rows))


def _part(results: Any, start: int, length: int, single: bool) -> Any:
    """The results of some rows, or the result of one, of each output."""
    if isinstance(results, dict):
        return {name: _part(part, start, length, single) for name, part in results.items()}
    part = results[start : start + length]
    return part[0] if single else part


def typed(rows: Any, kind: Any) -> Any:
    """The rows in a type of numpy's; ``None``: as they are. A model that takes whole numbers refuses others."""
    import numpy

    # A copy, since numbers that came as bytes can't be written to.
    table = numpy.array(rows)
    if kind is None:
        return table
    kind = numpy.dtype(kind)
    if kind.kind in "iu" and table.dtype.kind == "f" and not (numpy.isfinite(table) & (table == numpy.floor(table))).all():
        raise RequestError("this model takes whole numbers")
    return table.astype(kind, copy=False)


def fitted(rows: Any, shape: Optional[Sequence[Optional[int]]]) -> Any:
    """The rows in the shape that the model takes one in, such as 784 numbers as 28 × 28. ``None`` is a dimension of any length,
    and in place of a shape one that nobody knows."""
    if shape is None or rows.ndim != 2:
        return rows
    opened = sum(1 for length in shape if length is None)
    known = math.prod(length for length in shape if length is not None)
    width = rows.shape[1]
    if opened > 1 or (opened == 1 and len(shape) == 1):
        return rows
    if width % known if opened and known else width != known:
        told = " × ".join("any" if length is None else str(length) for length in shape) or "1"
        total = ": {}".format(known) if len(shape) > 1 and not opened else ""
        raise RequestError("a row has {} numbers, and the model takes {}{}".format(width, told, total))
    return rows.reshape((len(rows),) + tuple(-1 if length is None else length for length in shape))
