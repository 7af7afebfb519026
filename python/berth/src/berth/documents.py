"""Requests as they come and answers as they go: JSON documents, with arrays of numbers beside them as bytes."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
from typing import Any, List

#: Codes of struct by the datatypes of the Open Inference Protocol.
_CODES = {
    "BOOL": "?",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP32": "f",
    "FP64": "d",
}


def decode(text: memoryview, attached: List[List[Any]], body: memoryview, as_arrays: bool, names: List[str]) -> Any:
    """A request. ``attached`` names what is beside it: ``[name, datatype, shape, start, end]`` in ``body``."""
    document = json.loads(bytes(text))
    for name, datatype, shape, start, end in attached:
        document[name] = _array(body[start:end], datatype, shape, as_arrays)
    if as_arrays and names and isinstance(document, dict):
        import numpy

        taken = {entry[0] for entry in attached}
        for name in names:
            if name in document and name not in taken:
                document[name] = numpy.asarray(document[name])
    return document


def _array(data: memoryview, datatype: str, shape: List[int], as_arrays: bool) -> Any:
    code = _CODES[datatype]
    if as_arrays:
        import numpy

        return numpy.frombuffer(data, dtype=numpy.dtype(code).newbyteorder("<")).reshape(shape)
    if 0 in shape:
        return _empty(shape)
    numbers: Any = data.cast("B")
    return numbers.cast(code, shape).tolist()


def _empty(shape: List[int]) -> Any:
    return [] if shape[0] == 0 else [_empty(shape[1:]) for _ in range(shape[0])]


def encode(answer: Any) -> bytes:
    """An answer as JSON; numpy's numbers and arrays, tensors, dataclasses, enums and dates are taken as well."""
    return json.dumps(answer, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(thing: Any) -> Any:
    if hasattr(thing, "detach") and hasattr(thing, "cpu"):
        return thing.detach().cpu().tolist()
    if hasattr(thing, "tolist"):
        return thing.tolist()
    if hasattr(thing, "numpy") and not isinstance(thing, type):
        return thing.numpy().tolist()
    if hasattr(thing, "model_dump"):
        return thing.model_dump()
    if hasattr(thing, "to_dict"):
        return thing.to_dict()
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return dataclasses.asdict(thing)
    if isinstance(thing, enum.Enum):
        return thing.value
    if isinstance(thing, (datetime.date, datetime.time)):
        return thing.isoformat()
    if isinstance(thing, decimal.Decimal):
        return float(thing)
    if isinstance(thing, (set, frozenset, tuple)):
        return list(thing)
    if isinstance(thing, bytes):
        return thing.decode("utf-8")
    raise TypeError("an answer is JSON, and {} is not".format(type(thing).__name__))
