"""Processes of graphs that run outside of their worker."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    found, waiting = [], [pid]
    while waiting:
        of = waiting.pop()
        # One that has ended meanwhile has none.
        try:
            tasks = [task.read_text() for task in Path(f"/proc/{of}/task").glob("*/children")]
        except OSError:
            continue
        children = [int(child) for task in tasks for child in task.split()]
        found += children
        waiting += children
    return found


def fields(pid: int) -> dict[str, str]:
    """What /proc/PID/status says; nothing of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def engines(server) -> list[int]:
    """The engines of a server's graphs."""
    return [pid for pid in descendants(server.process.pid) if fields(pid).get("Name") == "berth-onnx"]


def busy(pid: int) -> int:
    """The processor time that a process took, in ticks."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(words[11]) + int(words[12])
