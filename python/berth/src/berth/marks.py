"""How an author says what a function takes."""

from __future__ import annotations

from typing import Any, Callable, Dict, TypeVar

#: What a function gets as its ``config``: the object of the card, as JSON gives it.
Config = Dict[str, Any]

F = TypeVar("F", bound=Callable[..., Any])

_BATCHED = "__berth_batched__"
_ARRAYS = "__berth_arrays__"


def batched(function: F) -> F:
    """Marks a function that takes a list and returns a list of the same length, item by item.

    Works on the preprocessing function, the postprocessing function, and the model (its ``predict`` or
    ``__call__``, or the function that ``load`` returns). The list has 1 to ``interface.batch_size`` items.
    """
    setattr(function, _BATCHED, True)
    return function


def arrays(function: F) -> F:
    """Marks a preprocessing function that takes numpy arrays where the request has arrays of numbers.

    Arrays that came as binary tensors are then not copied. Without the mark they are lists, as JSON gives them.
    """
    setattr(function, _ARRAYS, True)
    return function


def is_batched(function: Callable[..., Any]) -> bool:
    """Whether :func:`batched` marked it."""
    return _marked(function, _BATCHED)


def takes_arrays(function: Callable[..., Any]) -> bool:
    """Whether :func:`arrays` marked it."""
    return _marked(function, _ARRAYS)


def _marked(function: Callable[..., Any], mark: str) -> bool:
    if getattr(function, mark, False) is True:
        return True
    # A callable object is marked on its class's __call__.
    return getattr(getattr(type(function), "__call__", None), mark, False) is True
