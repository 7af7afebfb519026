"""A new user's first hours: the tutorial and the first day, word by word, from `pip install` on, on a system without Rust and
without a checkout.

What was typed is printed with its times (`pytest -s`) and kept beside the packages in `tutorial.times` and `first-day.times`. By hand, on
a machine that has nothing else to do, `cargo xtask dist --out DIR` and then

    BERTH=DIR/berth EXAMPLE_MODELS=examples/models PACKAGES=DIR FIRST_ANSWER=60 python3 -m pytest -s tests/packages/test_first_day.py

also fails where it took longer than that many seconds from `pip install` to the first answer of a model.
"""

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


# Hours of a user, a quarter of an hour of a machine that runs other suites as well.
@pytest.mark.timeout(1800)
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
        # The first day asks a model after much else.
        first = first_answer(terminal.times) if name == "tutorial" else None
        journal = told(terminal.times, first)
        print(f"\n{name}:\n{journal}")
        (PACKAGES.parent / f"{name}.times").write_text(journal)
    limit = os.environ.get("FIRST_ANSWER")
    if name == "tutorial":
        assert first is not None, "the tutorial installs, and asks a model"
        assert limit is None or first <= float(limit), f"the first answer came after {first:.1f} s"


def told(times: list[tuple[float, str]], first: float | None) -> str:
    """What was typed, with times."""
    lines = [f"{took:7.1f} s  {text.splitlines()[0]}" for took, text in times]
    lines.append(f"{sum(took for took, _ in times):7.1f} s  in all")
    if first is not None:
        lines.append(f"{first:7.1f} s  from `pip install` to the first answer of a model")
    return "\n".join([*lines, ""])


def first_answer(times: list[tuple[float, str]]) -> float | None:
    """Seconds from the installation to the first answer; reading and typing take none."""
    typed = [text for _, text in times]
    begin = next((at for at, text in enumerate(typed) if text.startswith("pip install")), None)
    end = next((at for at, text in enumerate(typed) if text.startswith("curl ")), None)
    if begin is None or end is None:
        return None
    return sum(took for took, _ in times[begin : end + 1])


def test_the_first_answer_is_counted_from_the_installation() -> None:
    times = [(9.0, "python3 -m venv .venv"), (20.0, "pip install x"), (13.5, "berth serve v1"), (0.5, "curl -s a"), (1.0, "curl -s b")]
    assert first_answer(times) == 34.0 and first_answer(times[2:]) is None
    assert told(times, first_answer(times)).splitlines()[-2:] == ["   44.0 s  in all", "   34.0 s  from `pip install` to the first answer of a model"]
