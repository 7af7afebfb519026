"""Control groups of a test's own, for what runs in a process namespace.

A worker keeps its models in groups below its own, and ends those of makers that it does not see: it takes them for left behind. From
outside of a process namespace nobody inside is seen, so that both must not have the same group above them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

from .waiting import until

MOUNT = Path("/sys/fs/cgroup")
# Those of version 1 that a worker uses; in version 2 it uses none that it shares.
CONTROLLERS = ("memory", "cpu", "pids")
NUMBERS = itertools.count()


class Groups:
    """One group for each controller, as far as this machine has them and this user may make them."""

    def __init__(self, name: str):
        self.folders: list[Path] = []
        name = f"{name}-{os.getpid()}-{next(NUMBERS)}"
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not set(controllers.split(",")) & set(CONTROLLERS):
                continue
            folder = MOUNT / controllers / path.lstrip("/") / name
            with contextlib.suppress(OSError):
                folder.mkdir()
                self.folders.append(folder)

    def command(self, command: list[str]) -> list[str]:
        """The same command in these groups."""
        join = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
        return ["sh", "-c", join, "sh", *map(str, self.folders), "--", *command]

    def close(self) -> None:
        """Removes them, once their processes are gone."""
        for folder in self.folders:
            until(f"the processes of {folder} to end", lambda folder=folder: _removed(folder))


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        # Groups of models and functions whose server was killed.
        for inside in folder.glob("berth-process-*"):
            inside.rmdir()
        folder.rmdir()
    return not folder.exists()
