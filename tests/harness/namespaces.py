"""Network namespaces, entered by a thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

# The flag of setns(2) for network namespaces.
CLONE_NEWNET = 0x40000000


def enter(namespace: int) -> None:
    """Moves the calling thread; `os.setns` is there from Python 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def inside(place: str) -> Iterator[None]:
    """Sockets that this thread creates meanwhile belong to the namespace (a file such as /proc/PID/ns/net), and stay there."""
    with open("/proc/thread-self/ns/net") as home, open(place) as there:
        enter(there.fileno())
        try:
            yield
        finally:
            enter(home.fileno())
