"""The tutorial and the first day, word by word, from `pip install` on, on a system without Rust and without a checkout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clean_root import program
from harness import pages
from harness.terminal import Terminal
from test_packages import PACKAGES, PLAIN, package

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(os.geteuid() != 0, reason="a root of its own takes root")
@pytest.mark.parametrize("name", ["tutorial", "first-day"])
def test_a_new_user(name: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shared = [work, tmp_path / "work.out"]
    environment = PLAIN | {
        "HOME": "/root", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_COLOR": "1", "COLUMNS": "160",
        "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com", "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.com",
    }  # fmt: skip
    work.mkdir()
    shutil.copy(package("berth-*.whl"), work)
    terminal = Terminal(work, environment, program(tmp_path / "root", *shared))
    try:
        terminal.follow(f"{name}.md", pages.read(DOCS / f"{name}.md"))
    finally:
        terminal.close()
        # What was typed, with times.
        lines = [f"{took:7.1f} s  {text.splitlines()[0]}" for took, text in terminal.times]
        total = sum(took for took, _ in terminal.times)
        (PACKAGES.parent / f"{name}.times").write_text("\n".join([*lines, f"{total:7.1f} s  in all", ""]))
