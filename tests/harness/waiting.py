"""Waiting for what has to come."""

from __future__ import annotations

import time
from collections.abc import Callable

# How long anything may take before the test fails; nothing waits longer than it must. Halved, a machine that compiles beside
# the tests fails them; doubled, a failure takes that much longer to be told.
PATIENCE = 180.0


def until(what: str | Callable[[], str], check: Callable, patience: float = PATIENCE):
    """The first true answer of `check`, asked again and again; fails the test by saying what never came.

    Where `what` is a function it is asked at the end, and can say what there was instead.
    """
    end = time.monotonic() + patience
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < end, f"never came: {what() if callable(what) else what}"
        time.sleep(0.05)
