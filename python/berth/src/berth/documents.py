"""Requests as they come and answers as they go: JSON documents, with arrays of numbers beside them as bytes."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
from typing import Any, Callable, List, Optional, Tuple

from .encoding import encoder

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


def decode(text: memoryview, attached: List[List[Any]], body: memoryview, numpy: Any, names: List[str]) -> Any:
    """A request. ``attached`` names what is beside it: ``[name, datatype, shape, start, end]`` in ``body``. With the module
    ``numpy``, arrays of numbers are its arrays, and ``names`` are those that may have come as lists; with None they are lists."""
    # Most rows of numbers have nothing in JSON.
    document = {} if text == b"{}" else _value(str(text, "utf-8"))
    for name, datatype, shape, start, end in attached:
        document[name] = _array(body[start:end], datatype, shape, numpy)
    if numpy is not None and isinstance(document, dict):
        for name in names:
            if name in document:
                document[name] = numpy.asarray(document[name])
    return document


def _value(text: str) -> Any:
    # The worker has read it: nothing comes after it, and what begins with a brace has no space before it.
    return _DECODER.raw_decode(text)[0] if text.startswith("{") else _DECODER.decode(text)


def _array(data: memoryview, datatype: str, shape: List[int], numpy: Any) -> Any:
    code = _CODES[datatype]
    if numpy is not None:
        return numpy.frombuffer(data, dtype="<" + code).reshape(shape)
    if 0 in shape:
        return _empty(shape)
    numbers: Any = data.cast("B")
    return numbers.cast(code, shape).tolist()


def _empty(shape: List[int]) -> Any:
    return [] if shape[0] == 0 else [_empty(shape[1:]) for _ in range(shape[0])]


def encode(answer: Any) -> bytes:
    """An answer as JSON; numpy's numbers and arrays, tensors, dataclasses, enums and dates are taken as well."""
    try:
        return _text(answer, allow_nan=False).encode()
    except ValueError:
        found = _not_finite(_DECODER.decode(_text(answer, allow_nan=True)), "")
        if found is None:
            raise
    raise ValueError("{} is {}, and JSON has no such number".format(*found))


def _text(answer: Any, allow_nan: bool) -> str:
    return (_ANY_NUMBERS if allow_nan else _NUMBERS_OF_JSON)(answer)


def _not_finite(document: Any, pointer: str) -> Optional[Tuple[str, float]]:
    """Where the first number is that JSON does not have."""
    if isinstance(document, float) and not math.isfinite(document):
        return pointer or "the answer", document
    entries = enumerate(document) if isinstance(document, list) else ()
    for name, value in document.items() if isinstance(document, dict) else entries:
        found = _not_finite(value, "{}/{}".format(pointer, name))
        if found is not None:
            return found
    return None


def _plain(thing: Any) -> Any:
    if hasattr(thing, "detach") and hasattr(thing, "cpu"):
        return thing.detach().cpu().tolist()
    if hasattr(thing, "tolist"):
        plain = thing.tolist()
        # numpy's longest numbers are none of Python's and stay as they are.
        if type(plain) is not type(thing):
            return plain
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


def _encoder(allow_nan: bool) -> Callable[[Any], str]:
    return encoder(_plain, allow_nan, (",", ":"))


# `json.dumps` would make one for each answer, and code of the model may replace `json.loads`.
_DECODER = json.JSONDecoder()
_NUMBERS_OF_JSON, _ANY_NUMBERS = _encoder(allow_nan=False), _encoder(allow_nan=True)
