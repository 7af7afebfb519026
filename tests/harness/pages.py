"""Pages of the documentation, read as a reader does: block by block, in order.

Languages `sh` and `console` are commands. In a `console` block commands begin with `$ `, and what follows is the output that the
reader sees. A block with `title="FILE"` is a file that the reader writes. Comments before a block say what differs:

    <!-- prepare         commands that a reader does not see: they make what the page takes as given
    ... -->
    <!-- stays -->       the command goes on in a terminal of its own; it is ready when it has printed what the block shows
    <!-- fails -->       the last command ends with an error; all others, and those of other blocks, end well
    <!-- not run: WHY --> nothing here can run it
    <!-- python -->      the block is a program in Python, and runs

`--` within a comment is written as it is: HTML allows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

BEGIN = re.compile(r"^( *)```(\w*)\s*(.*)$")
TITLE = re.compile(r'title="([^"]+)"')
COMMENT = re.compile(r"^<!-- (prepare|stays|fails|not run:|python)\s*(.*)$")


@dataclass
class Command:
    """A command and the output that the page shows after it."""

    text: str
    line: int
    shown: list[str] = field(default_factory=list)


@dataclass
class Step:
    """A block that does something, or preparations. `kind` is `sh`, `console`, `file`, `python` or `prepare`."""

    kind: str
    line: int
    lines: list[str]
    name: str = ""
    stays: bool = False
    fails: bool = False

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def commands(self) -> list[Command]:
        """Of a block `console`. A line that ends with a backslash goes on in the next one."""
        found: list[Command] = []
        goes_on = False
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith("$ "):
                found.append(Command(line[2:], number))
            elif goes_on:
                found[-1].text += "\n" + line
            else:
                assert found, f"line {number}: output before the first command"
                found[-1].shown.append(line)
                continue
            goes_on = line.endswith("\\")
        return found


@dataclass
class Page:
    """The steps of a page; `left_out` are lines and reasons."""

    steps: list[Step]
    left_out: list[tuple[int, str]]
    # Blocks without a language: nobody can tell if they are commands.
    unnamed: list[int]


def read(path: Path) -> Page:
    page = Page([], [], [])
    lines = path.read_text().splitlines()
    notes: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if comment := COMMENT.match(line):
            first, text = number, [comment[2]]
            while "-->" not in text[-1]:
                text.append(lines[number])
                number += 1
            text[-1] = text[-1].split("-->")[0].rstrip()
            if comment[1] == "prepare":
                page.steps.append(Step("prepare", first, text))
            else:
                notes[comment[1].rstrip(":")] = " ".join(text).strip()
        elif begin := BEGIN.match(line):
            indent, language, rest = begin.groups()
            first, body = number, []
            while lines[number].strip() != "```":
                body.append(lines[number].removeprefix(indent))
                number += 1
            number += 1
            _take(page, language, TITLE.search(rest), Step(language, first, body), notes)
            notes = {}
        elif line.strip():
            assert not notes, f"{path.name}:{number}: a comment about a block stands before text"
    return page


def _take(page: Page, language: str, title: re.Match | None, step: Step, notes: dict[str, str]) -> None:
    if not language:
        page.unnamed.append(step.line)
    elif "not run" in notes:
        assert len(notes["not run"]) > 5, f"line {step.line}: why is it not run?"
        page.left_out.append((step.line, notes["not run"]))
    elif title:
        page.steps.append(Step("file", step.line, step.lines, name=title[1]))
    elif language in ("sh", "console"):
        step.stays, step.fails = "stays" in notes, "fails" in notes
        page.steps.append(step)
    elif "python" in notes:
        page.steps.append(Step("python", step.line, step.lines))


# === what a page shows, against what there is ===

# What differs from run to run and from machine to machine, and what stands for it while two texts are compared.
VARYING = [
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "TIME"),
    # The last digits of a figure that was computed differ from machine to machine.
    (re.compile(r"\b\d+\.\d{4,}(e-?\d+)?"), lambda figure: f"{float(figure[0]):.2f}"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b"), "HEX"),
    (re.compile(r"\b\d+(\.\d+)? ?(B|[KMGT]i?B)\b"), "SIZE"),
    (re.compile(r"\b(\d+(\.\d+)? ?(ns|µs|us|ms|s|min|m|h|d))+\b"), "SPAN"),
    (re.compile(r"\b\d+(\.\d+)? ?%"), "PERCENT"),
    (re.compile(r"\s+"), " "),
]


def plain(line: str) -> str:
    for pattern, word in VARYING:
        line = pattern.sub(word, line)
    return line.strip()


def difference(shown: list[str], there: list[str]) -> str | None:
    """The first line that a page shows and that is not there. `…` in a line stands for anything, alone for any lines."""
    wanted = [line for line in map(plain, shown) if line]
    found = [line for line in map(plain, there) if line]
    at, any_lines = 0, False
    for line in wanted:
        if line in ("…", "..."):
            any_lines = True
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("…")))
        place = next((i for i in range(at, len(found) if any_lines else min(at + 1, len(found))) if pattern.fullmatch(found[i])), None)
        if place is None:
            return f"the page shows:    {line}\nthe command wrote: {found[at] if at < len(found) else 'nothing more'}"
        at, any_lines = place + 1, False
    if at < len(found) and not any_lines and wanted:
        return f"the page shows nothing more, and the command wrote: {found[at]}"
    return None
