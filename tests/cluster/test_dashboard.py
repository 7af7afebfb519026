"""The dashboard of a cluster in a real Chromium, while a node is killed; and the pictures of docs/dashboard.md."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from harness.examples import manifest
from harness.waiting import PATIENCE, until
from test_faults import holder

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
IMAGES = Path(__file__).parents[2] / "docs/images"
# Points of the history, one each 10 s, before a picture is taken: enough for a line.
POINTS = 8


def browser_of(made, folder: Path) -> Path:
    """Chromium on the machine of the clients."""
    script = folder / "chromium"
    command = " ".join(made.clients.command(shutil.which("chromium")))
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return script


@contextlib.contextmanager
def browser(made, folder: Path):
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser_of(made, folder), args=QUIET)
        yield chromium
        chromium.close()


def section(page: Page, heading: str) -> Locator:
    return page.locator("section", has=page.get_by_role("heading", name=heading, exact=True))


def is_lost(page: Page, name: str) -> None:
    expect(page.locator("#health")).to_contain_text("2 of 3 nodes alive")
    expect(page.locator(f'article.worker[data-key="{name}"] h3')).to_contain_text("Lost")


def test_a_node_is_killed_while_somebody_looks(cluster, tmp_path):
    made = cluster(count=3)
    made.apply(manifest("iris", replicas=2))
    made.available("iris")
    victim = holder(made, "iris")
    looked_at = next(node for node in made.nodes if node is not victim)
    with browser(made, tmp_path) as chromium:
        page = chromium.new_page()
        faults = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"http://{looked_at.api}/dashboard/#/fleet", timeout=PATIENCE * 1000)
        expect(page.locator("#health")).to_contain_text("3 of 3 nodes alive")
        expect(page.locator("article.worker")).to_have_count(3)
        victim.kill()
        is_lost(page, victim.name)
        page.goto(f"http://{looked_at.api}/dashboard/#/model/iris")
        expect(page.locator("h1")).to_contain_text("Available")
        expect(section(page, "Replicas")).not_to_contain_text(victim.name)
        expect(section(page, "Events")).to_contain_text("Placed")
    assert not faults, faults


@pytest.mark.skipif(not os.environ.get("BERTH_PICTURES"), reason="BERTH_PICTURES=1 takes the pictures of docs/dashboard.md anew")
def test_the_pictures_of_the_documentation_are_taken(cluster, tmp_path):
    made = cluster(*[["--memory", "48MiB"]] * 3)
    asked = ["iris", "wine", "churn", "fraud"]
    made.apply(
        *(manifest(name, replicas=2) for name in asked[:2]),
        *(manifest(name, replicas={"min": 0, "max": 2}) for name in asked[2:]),
        manifest("digits", "digits-forest", replicas=2),
        manifest("strokes", "digits-mlp"),
        manifest("diabetes", "diabetes"),
        manifest("sentiment", "sentiment", replicas=2),
    )
    made.available("iris", "wine", "digits", "strokes", "diabetes", "sentiment")
    load = made.load(*asked, callers=3, rate=120.0)
    load.more(100)
    victim = holder(made, "iris")
    looked_at = next(node for node in made.nodes if node is not victim)

    def points() -> int:
        """The number of known points in the history of the model."""
        status, text = looked_at.call("/v1/dashboard/history?deployment=iris")
        lines = {line["name"]: line["points"] for line in json.loads(text)["lines"]} if status == 200 else {}
        return sum(1 for point in lines.get("requestsPerSecond", []) if point is not None)

    def see(page: Page, place: str) -> None:
        page.goto(f"http://{looked_at.api}/dashboard/#/{place}", timeout=PATIENCE * 1000)

    with browser(made, tmp_path) as chromium:
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        until("a history to draw", lambda: points() >= POINTS)
        see(page, "fleet")
        expect(page.locator("article.worker")).to_have_count(3)
        expect(page.locator("#health")).to_contain_text("3 of 3 nodes alive")
        expect(page.locator("article.worker .chart path").first).to_be_attached()
        page.screenshot(path=IMAGES / "dashboard-fleet.png")
        victim.kill()
        is_lost(page, victim.name)
        elsewhere = lambda: len([place for place in made.places("iris") if place != victim.name]) == 2
        until("the copies of the killed node elsewhere", elsewhere)
        known = points()
        until("a history of what came after", lambda: points() > known + 2)
        section(page, "Workers").screenshot(path=IMAGES / "dashboard-workers.png")
        phone = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark").new_page()
        see(phone, "model/iris")
        expect(phone.locator("h1")).to_contain_text("Available")
        expect(phone.locator("#health")).to_contain_text("2 of 3 nodes alive")
        phone.screenshot(path=IMAGES / "dashboard-model.png")
    load.end()
