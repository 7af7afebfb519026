"""What a model's process does to itself before any code of the model runs.

The worker cannot do these from outside without code between fork and exec, which is not worth its dangers: the first
lines of this process are ours, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from typing import Any, Dict, List

from .frames import Line

_PR_SET_PDEATHSIG = 1


def apply(limits: Dict[str, Any], line: Line) -> List[str]:
    """Joins the control groups, sets the limits, and ties this process's life to the worker's, where no launcher did.

    Returns what could not be done, for the log.
    """
    undone: List[str] = []
    for path in limits.get("cgroups", []):
        try:
            with open(os.path.join(path, "cgroup.procs"), "w") as file:
                file.write("0")
        except OSError as error:
            undone.append("cannot join {}: {}".format(path, error))
    undone += _limit(limits)
    if limits.get("parent"):
        undone += _die_with_parent(limits["parent"])
    os.register_at_fork(before=_will_fork, after_in_child=lambda: _forked(line))
    return undone


def _limit(limits: Dict[str, Any]) -> List[str]:
    import resource

    undone: List[str] = []
    wanted = [("RLIMIT_CORE", 0)]
    if limits.get("data"):
        wanted.append(("RLIMIT_DATA", int(limits["data"])))
    for name, value in wanted:
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(which, (value, value))
        except (OSError, ValueError) as error:
            undone.append("cannot set {}: {}".format(name, error))
    return undone


def _die_with_parent(parent: int) -> List[str]:
    undone = [] if _set_death_signal() else ["this process outlives a worker that is killed, until its next request"]
    if os.getppid() != parent:
        # The worker died before the signal was set.
        os._exit(1)
    return undone


def _set_death_signal() -> bool:
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    return bool(prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


#: Whether the fork that is under way comes from the main thread.
_fork = threading.local()


def _will_fork() -> None:
    _fork.main = threading.current_thread() is threading.main_thread()


def _forked(line: Line) -> None:
    """In a child that the model forked: it must neither outlive the model nor hold its line open.

    The signal comes when the thread ends that forked: one that ends before the process would kill a child that is
    still wanted.
    """
    if getattr(_fork, "main", True):
        _set_death_signal()
    line.close()


class _ReadOnly(SourceFileLoader):
    """Writes no compiled files: the code is a checkout that other models share."""

    def set_data(self, path: Any, data: Any, *, _mode: int = 0o666) -> None:
        """Does nothing."""


def read_only_below(root: str) -> None:
    """Imports from below ``root`` leave no traces there."""
    root = os.path.realpath(root)

    def finder(path: str) -> FileFinder:
        real = os.path.realpath(path)
        if real != root and not real.startswith(root + os.sep):
            raise ImportError("not a checkout", path=path)
        return FileFinder(path, (_ReadOnly, SOURCE_SUFFIXES), *_extensions())

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()


def _extensions() -> List[Any]:
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader

    return [(ExtensionFileLoader, EXTENSION_SUFFIXES)]
