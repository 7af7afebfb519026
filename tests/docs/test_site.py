"""The documentation as a site, in a real Chromium. `cargo xtask test` makes it and sets SITE."""

from __future__ import annotations

import functools
import html
import http.server
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from harness.waiting import PATIENCE

SITE = Path(os.environ["SITE"])
ROOT = Path(__file__).parents[2]
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_page_is_found_by_search_and_nothing_else_is_asked(address):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        hosts, faults = set(), []
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{address}/index.html")
        for kind in ("Tutorial", "How-to guides", "Reference", "Explanation"):
            expect(page.get_by_role("navigation").get_by_text(kind, exact=True).first).to_be_attached()
        page.keyboard.press("/")
        page.keyboard.type("fenced leadership epoch")
        expect(page.get_by_text("Architecture").last).to_be_visible()
        browser.close()
    assert hosts == {address.removeprefix("http://")} and not faults, (hosts, faults)


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "xtask/docs/zensical.toml").read_text()
    listed = re.findall(r'= "([\w-]+\.md)"', settings)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_every_link_leads_somewhere():
    pages = {page.name: page.read_text() for page in SITE.glob("*.html") if page.name != "404.html"}
    ids = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in pages.items()}
    broken = []
    for name, text in pages.items():
        for link in set(re.findall(r'<a [^>]*?href="([^"]+)"', text)):
            file, _, place = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (file.removeprefix("./") or name).removesuffix("/") or "index.html"
            target = "index.html" if target == "." else target
            if not (SITE / target).exists() or (place and place != "__skip" and target in ids and html.unescape(place) not in ids[target]):
                broken.append(f"{name}: {link}")
    assert not broken, broken
