"""The dashboard of a cluster in a real Chromium, while a node is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from harness.examples import manifest
from harness.waiting import PATIENCE
from test_faults import holder

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]


def browser_of(made, folder: Path) -> Path:
    """Chromium on the machine of the clients."""
    script = folder / "chromium"
    command = " ".join(made.clients.command(shutil.which("chromium")))
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return script


def test_a_node_is_killed_while_somebody_looks(cluster, tmp_path):
    expect.set_options(timeout=PATIENCE * 1000)
    made = cluster(count=3)
    made.apply(manifest("iris", replicas=2))
    made.available("iris")
    victim = holder(made, "iris")
    looked_at = next(node for node in made.nodes if node is not victim)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_of(made, tmp_path), args=QUIET)
        page = browser.new_page()
        faults = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"http://{looked_at.api}/dashboard/#/fleet", timeout=PATIENCE * 1000)
        expect(page.locator("#health")).to_contain_text("3 of 3 nodes alive")
        expect(page.locator("article.worker")).to_have_count(3)
        victim.kill()
        expect(page.locator("#health")).to_contain_text("2 of 3 nodes alive")
        expect(page.locator(f'article.worker[data-key="{victim.name}"] h3')).to_contain_text("Lost")
        page.goto(f"http://{looked_at.api}/dashboard/#/model/iris")
        expect(page.locator("h1")).to_contain_text("Available")
        expect(page.locator("section", has=page.get_by_role("heading", name="Replicas"))).not_to_contain_text(victim.name)
        expect(page.locator("section", has=page.get_by_role("heading", name="Events"))).to_contain_text("Placed")
        browser.close()
    assert not faults, faults
