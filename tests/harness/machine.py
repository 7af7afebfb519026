"""The machine that measures."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """Its processor, memory and system, for a page of figures."""
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "unknown")
    memory = int(Path("/proc/meminfo").read_text().split()[1]) >> 20
    return f"{os.cpu_count()} cores of {cpu}, {memory} GiB, Linux {platform.release()}"
