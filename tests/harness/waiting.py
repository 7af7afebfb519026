"""Waiting for what has to come."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds that anything may take before the test fails: long enough for a machine that compiles beside the tests. Nothing waits
# longer than it must.
PATIENCE = 180.0

# The pause between two looks is as long as the look itself, within these bounds: a look that starts a program takes no more than
# half of a core from what it waits for.
SHORTEST, LONGEST = 0.05, 0.5


def until(what: str | Callable[[], str], check: Callable, patience: float = PATIENCE):
    """The first true answer of `check`, asked again and again; fails the test by saying what never came.

    Where `what` is a function it is asked at the end, and can say what there was instead.
    """
    end = time.monotonic() + patience
    while True:
        asked = time.monotonic()
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < end, f"never came: {what() if callable(what) else what}"
        time.sleep(min(max(SHORTEST, time.monotonic() - asked), LONGEST))
