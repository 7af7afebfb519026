"""The dashboard in a real Chromium, with the rules that the server gives browsers; and the dashboards for Grafana."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from harness.examples import EXAMPLES, manifest
from harness.waiting import PATIENCE, until

GRAFANA = sorted((Path(__file__).parents[2] / "docs/grafana").glob("*.json"))
# Nothing is asked of the outside, by the browser itself neither.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A tab; the test fails where a script of it failed, a rule was broken, or another host was asked."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    faults, hosts = [], set()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if "Content Security Policy" in message.text else None)
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    yield page
    context.close()
    assert not faults, faults
    assert len(hosts) == 1, hosts


def show(page: Page, berth, place: str) -> None:
    page.goto(f"http://{berth.api}/dashboard/#/{place}")


def test_a_model_is_found_and_tried_by_keyboard(shared, page):
    show(page, shared, "fleet")
    expect(page.locator("article.worker h3")).to_contain_text("Ready")
    expect(page.locator("#health")).to_contain_text("1 of 1 node alive")
    page.keyboard.press("2")
    expect(page.locator("h1")).to_have_text("Models")
    page.keyboard.press("/")
    page.keyboard.type("IRI")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("iris")
    page.get_by_role("button", name="Make a form").click()
    page.locator("textarea").fill("[[5.1, 3.5, 1.4, 0.2]]")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer")).to_contain_text("Answered in")
    # It counts as any other request, and what was typed stays while the page goes on.
    expect(page.locator(".figures")).to_contain_text("1 since the start")
    expect(page.locator("textarea")).to_have_value("[[5.1, 3.5, 1.4, 0.2]]")
    expect(page.locator(".chart").first).to_contain_text("requests")
    expect(page.locator(".lines")).to_contain_text("loaded in")


def test_who_leaves_first_is_told_with_the_last_use(berth, page):
    berth.start()
    berth.apply(manifest("resident"), manifest("cold", replicas={"min": 0}))
    berth.available("resident")
    show(page, berth, "fleet")
    expect(page.locator(".figures")).to_contain_text("none may be evicted")
    assert berth.infer("cold")[0] == 200
    expect(page.locator("article.worker")).to_contain_text("cold leaves first (last use: ")
    expect(page.locator(".figures")).to_contain_text("last use of the model that is evicted next")


def test_what_strangers_write_stays_text(berth, page):
    berth.start()
    evil = "<img src=x onerror=alert(1)>"
    document = manifest("iris", model={"uri": "file:///nowhere/<script>alert(2)<b>.onnx"})
    document["metadata"] |= {"name": evil, "annotations": {"note": evil}}
    berth.apply(document)
    show(page, berth, "models")
    expect(page.locator("tbody")).to_contain_text(evil)
    page.locator("tbody a").click()
    expect(page.locator("h1")).to_contain_text(evil)
    expect(page.get_by_text("<script>alert(2)<b>").first).to_be_visible()
    assert page.locator("main img, main script").count() == 0


def test_a_role_shows_what_it_may_and_a_token_is_changed(berth, page, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    berth.start("--auth", "tokens", models=folder)
    file = berth.data / "admin.token"
    until("the admin's token", lambda: file.exists() and file.read_text().strip())
    admin = file.read_text().strip()
    bearer = {"authorization": f"Bearer {admin}"}
    until("the token to be known", lambda: berth.control("/v1/tokens", headers=bearer)[0] == 200)
    status, _, answer = berth.control("/v1/apply", "POST", json.dumps(manifest("iris")), bearer)
    assert status == 200, answer

    def made(role: str, **spec) -> str:
        status, _, answer = berth.control("/v1/tokens", "POST", json.dumps({"spec": {"role": role} | spec}), bearer)
        assert status == 201, answer
        return json.loads(answer)["secret"]

    def use(secret: str) -> None:
        page.locator("#token-text").fill(secret)
        page.get_by_role("button", name="Use this token").click()

    change = page.get_by_role("button", name="Token", exact=True)
    read = page.get_by_role("button", name="Read now")
    show(page, berth, "sources")
    use(made("viewer"))
    expect(page.locator("article")).to_have_count(1)
    expect(read).to_have_count(0)
    change.click()
    use(admin)
    expect(read).to_be_visible()

    # What a role does not reach is left out, or told; another token can be given at any time.
    change.click()
    use(made("caller"))
    expect(page.locator("#problem")).to_be_visible()
    change.click()
    use(made("viewer", namespaces=["default"], models=["iris"]))
    show(page, berth, "model/iris")
    expect(page.locator("h1")).to_contain_text("iris")
    expect(page.locator("main")).to_contain_text("Where it fits")
    expect(page.locator("main")).to_contain_text("Not shown: events need a role on the whole namespace.")
    change.click()
    use(made("viewer", namespaces=["default"]))
    expect(page.locator("main")).to_contain_text("Declared")


def test_a_request_in_the_own_json_of_a_model_is_made_from_its_schema(berth, page):
    def own(name: str, model: dict) -> dict:
        document = manifest(name, endpoint=f"/v1/{name}", replicas={"min": 0})
        document["spec"]["model"] = model
        return document

    schema = {
        "type": "object",
        "required": ["text", "scores", "mode"],
        "properties": {
            "text": {"type": "string", "examples": ["it's fine"]},
            "scores": {"type": "array", "minItems": 2, "items": {"type": "number"}},
            "mode": {"type": "object", "required": ["fast"], "properties": {"fast": {"type": "boolean", "default": True}}},
            "note": {"type": "string"},
        },
    }
    function = {"module": "src.model", "function": "f"}
    card = {
        "schemaVersion": "3.0.0",
        "metadata": {"name": "m", "version": "1.0.0", "description": "a model", "owner": "a@example.org"},
        "runtime": {"framework": "custom", "framework_version": "1", "python_version": "3.11", "dependencies": []},
        "artifacts": {"storage_type": "http", "model_path": "http://127.0.0.1:1/m"},
        "code": {"repository": "http://127.0.0.1:1/m.git", "path": "src/", "ref": "v1.0.0"},
        "preprocessing": function,
        "postprocessing": function,
        "interface": {"input_schema": schema, "output_schema": {}},
    }
    pinned = {"card": card, "repository": "http://127.0.0.1:1/m.git", "ref": "v1.0.0", "commit": "0" * 40, "codeCommit": "0" * 40}
    rows = {"format": "sklearn", "uri": "file:/nowhere/model.joblib", "environment": {}}
    berth.start()
    berth.apply(own("carded", {"format": "python", "card": pinned}), own("rows", rows))
    for name, body in (("carded", '{"text":"it\'\\\'\'s fine","scores":[0,0],"mode":{"fast":true}}'), ("rows", '{"features":[0,0,0,0]}')):
        show(page, berth, f"model/{name}")
        page.get_by_text("In its own JSON, with curl").click()
        expect(page.locator("main")).to_contain_text(f"-d '{body}' GATEWAY/v1/{name}")


def test_events_come_live_and_a_lost_server_is_told(berth, page):
    berth.start()
    show(page, berth, "events")
    expect(page.locator("h1")).to_contain_text("live")
    berth.apply(manifest("iris"))
    expect(page.locator("tbody")).to_contain_text("Declared")
    berth.kill()
    expect(page.locator("#problem")).to_contain_text("does not answer")
    expect(page.locator("#health")).to_have_text("no live news")
    expect(page.locator("tbody")).to_contain_text("Declared")


def test_a_phone_and_the_dark(shared, chromium):
    context = chromium.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    for place, text in [("fleet", "Workers"), ("models", "iris"), ("model/iris", "Replicas"), ("events", "Declared"), ("sources", "Read now")]:
        show(page, shared, place)
        expect(page.locator("main")).to_contain_text(text)
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= 360, f"{place} is {width} wide"
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("d")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != dark
    context.close()


@pytest.mark.parametrize("file", GRAFANA, ids=lambda file: file.stem)
def test_grafana_asks_for_metrics_that_exist(shared, file):
    shared.infer("iris")
    text = shared.control("/metrics")[2].decode()
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    known = {name + suffix for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M) for suffix in suffixes[kind]}
    expressions = [target["expr"] for panel in json.loads(file.read_text())["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        names = set(re.findall(r"\b(?:berth|worker|broker|system)_\w+", expression))
        assert names and names <= known, expression
        labels = set(re.findall(r"[{,](\w+)=", expression)) | set(sum((by.split(", ") for by in re.findall(r"by \(([^)]*)\)", expression)), []))
        for name in names:
            samples = re.findall(rf"^{name}{{([^}}]*)}}", text, re.M)
            there = {label for sample in samples for label in re.findall(r"(\w+)=", sample)} | {"instance"}
            assert not samples or labels <= there, f"{expression}: {name} has {there}"
