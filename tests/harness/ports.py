"""Ports for programs that have to be told one."""

from __future__ import annotations

import random
import socket
from collections import deque

# Below what kernels give to connections (from 32768 on with Linux) and what the tests in Rust take (from 20000 on).
FIRST, LAST = 10_000, 19_999

# Enough for many fleets, which take a dozen each, and a quarter of the files that a process may have open.
HELD: deque[socket.socket] = deque(maxlen=256)


def free_port() -> int:
    """A port, for TCP and UDP, that nobody else is given while the test runs.

    It is held: bound by this process, which never listens on it. A server that asks for this very port gets it, as servers
    set SO_REUSEADDR; no connection, and nobody who calls this, in this process or another, is given the same one.
    """
    for _ in range(LAST - FIRST):
        port = random.randint(FIRST, LAST)
        held = hold(port)
        if held:
            HELD.append(held)
            return port
    raise AssertionError(f"every port from {FIRST} to {LAST} is taken")


def hold(port: int) -> socket.socket | None:
    """The port's socket, unless somebody has it."""
    held = socket.socket()
    try:
        held.bind(("", port))
        with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("", port))
    except OSError:
        held.close()
        return None
    # Only now: before, it would have let two processes hold the same one.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def listens(port: int) -> bool:
    """Tries to connect to it."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
