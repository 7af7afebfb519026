"""The errors that this package raises or understands."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any, Dict, List, Optional, Sequence, Union

#: The most characters of a traceback that are kept, from its end, where the cause is.
MAX_TRACE = 16 * 1024

#: The most characters of an error's message that are kept.
MAX_MESSAGE = 2 * 1024

#: The most frames of a traceback that are read, from its end: as deep as Python goes unless code raises its limit.
MAX_FRAMES = 1000


class RequestError(Exception):
    """The request cannot be answered because of what is in it: the client gets status 422 and the message.

    ``path`` is a JSON pointer to what is wrong, e.g. ``/text`` or ``/rows/3``, or its parts, e.g. ``["rows", 3]``; empty
    means the whole request.
    """

    def __init__(self, message: str, path: "Union[str, Sequence[Union[str, int]]]" = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path


class CardError(Exception):
    """The card and its code do not go together. The message says what was expected and what was found."""

    category = "code"


class InvalidModel(CardError):
    """The artifact cannot be loaded as what the card says it is."""

    category = "invalid_model"


class MissingPackage(CardError):
    """The code imports what the card's environment does not have."""

    category = "dependencies"


def shortened(text: str, most: int = MAX_MESSAGE) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= most else text[: most - 4] + " ..."


def traceback_of(error: BaseException) -> str:
    """The traceback without frames that say nothing to an author: of this package, and of the import system."""
    try:
        return _traceback_of(error)
    except BaseException:  # As with a broken __str__.
        return "(its traceback cannot be printed)\n"


def _traceback_of(error: BaseException) -> str:
    lines: List[str] = []
    seen: List[int] = []
    current: Optional[BaseException] = error
    while current is not None and id(current) not in seen and len(seen) < 8:
        seen.append(id(current))
        frames = traceback.extract_tb(current.__traceback__, limit=-MAX_FRAMES)
        own = [frame for frame in frames if not frame.filename.startswith(_FOREIGN)]
        part = ["Traceback (most recent call last):\n"] + traceback.format_list(own) if own else []
        part += _last_lines(current)
        lines = part + (["\nwhich led to\n\n"] if lines else []) + lines
        hidden = getattr(current, "__suppress_context__", False)
        current = current.__cause__ or (None if hidden else current.__context__)
    text = "".join(lines)
    return text if len(text) <= MAX_TRACE else "... " + text[-MAX_TRACE + 4 :]


def _last_lines(error: BaseException) -> List[str]:
    message = message_of(error, MAX_TRACE)
    if len(message) == MAX_TRACE:
        # Python would make several copies of the whole message.
        return ["{}: {}\n".format(type(error).__name__, shortened(message))]
    return traceback.format_exception_only(type(error), error)


def described(error: BaseException, with_trace: bool = True) -> Dict[str, Any]:
    """An error as it crosses to the worker."""
    return {
        "type": shortened(type(error).__name__),
        "message": message_of(error) or "(no message)",
        "trace": traceback_of(error) if with_trace else "",
        "memory": lacks_memory(error),
    }


def refusal(error: RequestError) -> Dict[str, Any]:
    """What the code says of a request, as it crosses to the worker; a path may be a pointer, or its parts."""
    try:
        path = getattr(error, "path", "")
        parts = [str(part) for part in path] if isinstance(path, (list, tuple)) else str(path or "").lstrip("/").split("/")
    except BaseException:  # As with a broken __str__.
        parts = [""]
    pointer = "".join("/" + part for part in parts) if parts != [""] else ""
    return {"message": message_of(error), "path": shortened(pointer)}


def message_of(error: BaseException, most: int = MAX_MESSAGE) -> str:
    """Its message, of a length that can be told."""
    try:
        return shortened(str(error), most)
    except BaseException:  # A broken __str__ must not hide the error itself.
        return "(its message cannot be printed)"


def lacks_memory(error: BaseException) -> bool:
    """True of errors for want of memory, of this machine or of a GPU."""
    torch = sys.modules.get("torch")
    kind = getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None)
    return isinstance(error, MemoryError) or (kind is not None and isinstance(error, kind))


#: This package, and Python's own way to a module.
_FOREIGN = (__file__.rsplit("/", 1)[0], "<frozen importlib", importlib.__file__)
