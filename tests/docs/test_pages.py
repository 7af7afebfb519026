"""Every command of every page, typed by a reader who follows the page from its top to its end.

`tests/harness/pages.py` says how a page is read. The tutorial and the first day begin with `pip install`; tests/packages follows
them from the packages on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import pages
from harness.examples import EXAMPLES
from harness.processes import BERTH
from harness.terminal import Failed, Terminal

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
INSTALLED = {"tutorial", "first-day"}
READ = {page: pages.read(page) for page in PAGES}


@pytest.mark.parametrize("page", [page for page in PAGES if READ[page].steps and page.stem not in INSTALLED], ids=lambda page: page.stem)
def test_a_reader_follows(page: Path, tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "berth").symlink_to(BERTH)
    (tools / "uv").symlink_to(os.environ["BERTH_UV"])
    home = tmp_path / "home"
    home.mkdir()
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(home), "NO_COLOR": "1", "COLUMNS": "160", "EXAMPLES": str(EXAMPLES),
        "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.com", "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.com",
    }  # fmt: skip
    terminal = Terminal(tmp_path / "work", environment)
    try:
        terminal.follow(page.name, READ[page])
    finally:
        terminal.close()


def test_blocks_say_what_they_are():
    unnamed = [f"{page.name}:{line}" for page, read in READ.items() for line in read.unnamed]
    assert not unnamed, f"blocks without a language: {unnamed}"


def test_few_commands_are_left_out():
    """Each says why in its page; at least two thirds run."""
    left_out = [f"{page.name}:{line}: {why}" for page, read in READ.items() for line, why in read.left_out]
    run = [step for read in READ.values() for step in read.steps if step.kind in ("sh", "console")]
    assert 2 * len(left_out) <= len(run), f"{len(run)} blocks run, and not:\n" + "\n".join(left_out)


@pytest.mark.parametrize(
    ("shown", "there", "differs"),
    [
        (["a  b", "", "took 12 ms"], ["a c", "took 7.5 ms"], True),
        (["a  b", "", "took 12 ms"], ["a b", "took 7.5 ms"], False),
        (["iris@3f2a9c41d07b 2026-11-23 07:30:00"], ["iris@86b2086e73ee 2026-01-01 00:00:00"], False),
        (["a…z", "…", "end"], ["abcz", "1", "2", "end"], False),
        (["a"], ["a", "b"], True),
        (["a", "…"], ["a", "b"], False),
        (["a", "b"], ["a"], True),
        (["label 0"], ["label 1"], True),
        ([], ["anything"], False),
    ],
)
def test_outputs_are_compared(shown, there, differs):
    assert (pages.difference(shown, there) is not None) == differs


@pytest.mark.parametrize(
    ("note", "command", "as_shown"),
    [
        ("", "echo said", True),
        ("", "echo said; false", False),
        ("<!-- fails -->", "echo said; false", True),
        ("<!-- fails -->", "echo said", False),
    ],
)
def test_commands_end_as_the_page_says(note: str, command: str, as_shown: bool, tmp_path: Path):
    """Also those whose output is shown."""
    page = tmp_path / "page.md"
    page.write_text(f"{note}\n```console\n$ echo first\nfirst\n$ {command}\nsaid\n```\n")
    terminal = Terminal(tmp_path / "work", dict(os.environ))
    try:
        if as_shown:
            terminal.follow(page.name, pages.read(page))
        else:
            with pytest.raises(Failed, match="ended with"):
                terminal.follow(page.name, pages.read(page))
    finally:
        terminal.close()
