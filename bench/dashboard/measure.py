"""The dashboard's page of models with 100,000 deployments in a real Chromium: `cargo xtask bench dashboard` runs it and writes
docs/benchmarks-dashboard.md.

One `berth up` holds the deployments, all on demand; some have answered a request and are loaded. Each step is timed inside the
page: from the input to the first frame that shows its result. A step that is typed has the 250 ms in it that the page waits for
the end of a word.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))
os.environ.setdefault("EXAMPLE_MODELS", str(ROOT / "examples/models"))

from harness.examples import manifest  # noqa: E402
from harness.machine import machine  # noqa: E402
from harness.server import Berth  # noqa: E402
from harness.waiting import PATIENCE  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402

MIB = 1 << 20
# Deployments in one request: below 1 MiB of text.
AT_ONCE = 2_000
# Values of the label that is filtered by.
TIERS = 10
# As in tests/e2e/test_dashboard.py: the browser itself asks nothing of the outside.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]

# The page's rules forbid code from texts, so that a condition cannot be polled from outside: each step is one function.
STEP = """async () => {
  const shown = () => document.querySelector(".pages span")?.textContent ?? "";
  const rows = () => document.querySelectorAll("tbody tr").length;
  const title = () => document.querySelector("h1")?.textContent ?? "";
  const button = (text) => [...document.querySelectorAll("button.sort, button.chip")].find((one) => one.textContent.startsWith(text));
  const pressed = (text) => button(text)?.getAttribute("aria-pressed") === "true";
  const type = (selector, text) => {
    const input = document.querySelector(selector);
    input.value = text;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const begun = performance.now();
  ACT;
  while (!(DONE)) {
    if (performance.now() - begun > PATIENCE) throw new Error(`not done: ${title()}, ${shown()}`);
    await new Promise(requestAnimationFrame);
  }
  return performance.now() - begun;
}"""

# Scrolls from the top to the end and back; the longest time between two frames.
SCROLL = """async () => {
  const end = document.documentElement.scrollHeight - window.innerHeight;
  let [longest, last] = [0, performance.now()];
  for (let step = 0; step <= 120; step += 1) {
    window.scrollTo(0, end * (1 - Math.abs(1 - step / 60)));
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    [longest, last] = [Math.max(longest, now - last), now];
  }
  return longest;
}"""

# Since the navigation began.
FIRST = STEP.replace("const begun = performance.now();", "const begun = 0;").replace("ACT;", "")

# The API's answers without a browser.
ASKED = {
    "a page by name": "limit=50",
    "a page by memory, of a search": "limit=50&sort=memory&descending=true&search=9",
    "the last page": "limit=50&offset={last}",
}


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace):
        self.berth, self.options = Berth(folder), options
        self.times: dict[str, list[float]] = {}
        self.figures: dict[str, str] = {}

    def declare(self) -> None:
        begun = time.monotonic()
        for first in range(0, self.options.models, AT_ONCE):
            documents = []
            for number in range(first, min(self.options.models, first + AT_ONCE)):
                document = manifest(f"m{number:06}", replicas={"min": 0})
                document["metadata"]["labels"] = {"tier": f"t{number % TIERS}"}
                documents.append(json.dumps(document))
            status, _, body = self.berth.control("/v1/apply", "POST", "\n---\n".join(documents), {"content-type": "application/yaml"})
            assert status == 200, body[:500]
        print(f"declared in {time.monotonic() - begun:.0f} s", file=sys.stderr)
        for number in range(0, self.options.models, max(1, self.options.models // self.options.loaded)):
            status, answer = self.berth.infer(f"m{number:06}")
            assert status == 200, answer

    def memory(self) -> int:
        lines = Path(f"/proc/{self.berth.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))

    def note(self, label: str, milliseconds: float) -> None:
        self.times.setdefault(label, []).append(milliseconds)

    def step(self, page: Page, label: str | None, act: str, done: str) -> None:
        """Does something in the page and waits for its result; without a label it is not counted."""
        milliseconds = page.evaluate(self.filled(STEP, done).replace("ACT", act))
        if label:
            self.note(label, milliseconds)

    def filled(self, script: str, done: str) -> str:
        return script.replace("DONE", done).replace("PATIENCE", str(PATIENCE * 1000))

    def round(self, page: Page) -> None:
        count = self.options.models
        all_of_them = f'rows() === {min(50, count)} && shown().endsWith("of {count:,}")'
        search, labels = "input[type=search]", "input[type=text]"
        some = f"{count - 1:06}"[-2:]
        found = sum(some in f"m{number:06}" for number in range(count))
        tier = len(range(3, count, TIERS))

        self.step(page, None, 'location.hash = "#/fleet"', "!shown()")
        self.step(page, "from the fleet to the models", 'location.hash = "#/models"', all_of_them)
        self.step(page, "search: one model", f"type('{search}', 'm{count - 1:06}')", 'shown() === "1 to 1 of 1"')
        self.step(page, f"search: {found:,} models", f"type('{search}', '{some}')", f'shown().endsWith("of {found:,}")')
        self.step(page, "search: all again", f"type('{search}', '')", all_of_them)
        self.step(page, "filter by a label", f"type('{labels}', 'tier=t3')", f'shown().endsWith("of {tier:,}")')
        self.step(page, None, f"type('{labels}', '')", all_of_them)
        self.step(page, "filter by a state", 'button("ScaledDown").click()', 'pressed("ScaledDown")')
        self.step(page, None, 'button("All").click()', f'pressed("All") && {all_of_them}')
        for column in ("Memory", "Last use", "State", "Model"):
            self.step(page, f"sort by {column}", f'button("{column}").click()', f'pressed("{column}")')
        self.step(page, "next page", 'document.querySelector("[data-page=next]").click()', 'shown().startsWith("51 to")')
        middle = count // 2
        self.step(page, "a page in the middle", f'location.hash = "#/models?offset={middle}"', f'shown().startsWith("{middle + 1:,} to")')
        self.note("scroll: longest frame", page.evaluate(SCROLL))
        self.step(page, "one model", 'location.hash = "#/model/m000000"', 'title().includes("m000000")')

    def run(self) -> None:
        self.berth.start("--memory", self.options.memory)
        try:
            self.declare()
            self.figures["memory of berth before anybody looked"] = f"{self.memory() / MIB:.0f} MiB"
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
                page = browser.new_page(viewport={"width": 1200, "height": 900})
                page.set_default_timeout(PATIENCE * 1000)
                for _ in range(self.options.rounds):
                    page.goto("about:blank")
                    page.goto(f"http://{self.berth.api}/dashboard/#/models", wait_until="commit")
                    self.note("open the page", page.evaluate(self.filled(FIRST, "rows() > 0")))
                    self.round(page)
                self.figures["heap of the page"] = f"{page.evaluate('() => performance.memory.usedJSHeapSize') / MIB:.0f} MiB"
                self.figures["browser"] = f"Chromium {browser.version}"
                browser.close()
            for label, query in ASKED.items():
                for _ in range(self.options.rounds):
                    begun = time.monotonic()
                    status, _, body = self.berth.control("/v1/dashboard/models?" + query.format(last=self.options.models - 50))
                    assert status == 200, body[:500]
                    self.note(f"API: {label}", (time.monotonic() - begun) * 1e3)
            self.figures["memory of berth afterwards"] = f"{self.memory() / MIB:.0f} MiB"
        finally:
            self.berth.close()


def page_of(bench: Bench, options: argparse.Namespace, busy: float) -> str:
    lines = [
        "# Benchmarks of the dashboard",
        "",
        f"Written by `bench/dashboard/measure.py`, which `cargo xtask bench dashboard` runs, on one machine: {machine()}. Server and browser share its cores; the load",
        f"average before it began was {busy:.1f}. {options.models:,} deployments on demand are in one `berth up`, some {options.loaded} of them loaded; the [page of models](dashboard.md) is",
        f"in Chromium, {options.rounds} rounds. A time runs from the input to the first frame that shows the result. The page waits 250 ms for the end of a word that",
        "somebody types: they are in the times of *search* and of *filter by a label*.",
        "",
        "| step | median ms | longest ms |",
        "|---|---|---|",
        *(f"| {label} | {statistics.median(times):.0f} | {max(times):.0f} |" for label, times in bench.times.items()),
        "",
        "| | |",
        "|---|---|",
        *(f"| {label} | {figure} |" for label, figure in bench.figures.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=100_000, help="at least 200")
    parser.add_argument("--loaded", type=int, default=20, help="about so many of them have answered a request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        bench = Bench(Path(folder), options)
        bench.run()
    text = page_of(bench, options, busy)
    if options.out:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
