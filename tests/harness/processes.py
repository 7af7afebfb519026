"""Programs under test, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import weakref
from pathlib import Path

from .waiting import PATIENCE

# `cargo xtask test` sets it.
BERTH = os.environ["BERTH"]

# What its commands say while no controller decides, the one that does has only just begun or just died, or the machine is
# too busy for an answer in time.
NOBODY = ("Try again in a second", "which decides, was asked and did not answer", "did not answer in time")


class Process:
    """A program whose output goes to a file; it can be stopped in every way in which programs stop."""

    # All that live, for reports of failures.
    started: weakref.WeakSet[Process] = weakref.WeakSet()

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen | None = None
        self.lines: list[str] = []
        self.read = 0
        Process.started.add(self)

    def command(self, *command: str) -> list[str]:
        """As it is started here; who runs it elsewhere says how."""
        return list(command)

    def spawn(self, *command: str, env: dict | None = None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | (env or {})
            )

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def logged_lines(self) -> list[str]:
        """All whole lines so far. What is still being written comes with the next look."""
        if self.log.exists():
            with self.log.open("rb") as log:
                log.seek(self.read)
                new = log.read()
            whole = new[: new.rfind(b"\n") + 1]
            self.read += len(whole)
            self.lines += whole.decode(errors="replace").split("\n")[:-1]
        return self.lines

    def logged(self) -> str:
        return "\n".join(self.logged_lines())

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Asks it to end, and waits for its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def pause(self) -> None:
        """Stops it without ending it: it lives, and says nothing more."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        if self.runs():
            self.kill()
