"""JSON as it is written many times a second."""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Optional, Tuple

#: The deepest recursion that a thread's stack is sure to have room for. A list that holds itself is followed as far as code of the
#: model allows.
_SAFE_DEPTH = 10_000


def encoder(
    default: Optional[Callable[[Any], Any]], allow_nan: bool = True, separators: Tuple[str, str] = (", ", ": ")
) -> Callable[[Any], str]:
    """The function ``json.JSONEncoder(...).encode`` with these settings and ``ensure_ascii=False``. That makes an object of the
    library's C code for each document, which takes longer than to write a short one: here it is kept."""
    plain = json.JSONEncoder(default=default, allow_nan=allow_nan, ensure_ascii=False, separators=separators)
    try:
        make: Callable[..., Any] = json.encoder.c_make_encoder  # type: ignore[attr-defined]
        between = (plain.key_separator, plain.item_separator)
        # The first argument would remember what was being written when an error came.
        kept = make(None, plain.default, json.encoder.encode_basestring, None, *between, False, False, allow_nan)
        if "".join(kept([{"a": 1}], 0)) != plain.encode([{"a": 1}]):
            return plain.encode
    except Exception:
        # Another Python.
        return plain.encode

    def encode(document: Any) -> str:
        if sys.getrecursionlimit() <= _SAFE_DEPTH:
            try:
                return "".join(kept(document, 0))
            except (ValueError, RecursionError):
                # Written again by the other, which says what is wrong, such as a list that holds itself.
                pass
        return plain.encode(document)

    return encode
