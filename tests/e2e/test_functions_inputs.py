"""What functions are built from: packages with a lock and without one, and code in an object store that verifies signatures."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess

import pytest

from harness.functions import BUILD, WORDS, Etcd, archive, ask, function
from harness.ports import free_port, listens
from harness.processes import Process
from harness.waiting import until

PERIOD = "const ms = require('ms');\nexports.handler = (body) => ({ milliseconds: ms(body.text), version: require('ms/package.json').version });\n"
SIX = "import six\ndef predict(body):\n    return {'version': six.__version__}\n"


@pytest.fixture
def etcd(tmp_path):
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.close()


def start(berth, etcd, env: dict[str, str] | None = None):
    return berth.start("--source", f"etcd={etcd.client}", "--function-target", "local", env=env)


def byproducts(berth, name: str) -> list[dict]:
    provenance = json.loads(berth.control(f"/v1/functions/{name}/provenance")[2])
    return provenance["predicate"]["runDetails"]["byproducts"]


@pytest.mark.timeout(900)
def test_npm_obeys_a_lock_and_makes_one_where_there_is_none(berth, etcd, tmp_path):
    start(berth, etcd)
    # An older version than the newest that package.json allows.
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text('{"private": true}')
    install = ["npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund", "ms@2.1.2"]
    subprocess.run(install, cwd=project, check=True, capture_output=True, timeout=BUILD)
    package, lock = ((project / name).read_text() for name in ("package.json", "package-lock.json"))
    files = {"package.json": package, "src/handler.js": PERIOD}
    spec = {"type": "javascript", "entrypoint": "src/handler.handler", "probe": {"text": "1s"}}
    etcd.put(function("locked", archive(tmp_path, "locked.zip", files | {"package-lock.json": lock}), **spec))
    etcd.put(function("free", archive(tmp_path, "free.zip", files), **spec))

    etcd.settled("locked", "Succeeded", 1)
    assert ask(berth, "locked", {"text": "2h"}) == (200, {"milliseconds": 7_200_000, "version": "2.1.2"})
    assert "$ npm ci" in berth.run("logs", "function/locked")
    status, _, body = berth.control("/v1/functions/locked/lock")
    assert (status, byproducts(berth, "locked")) == (404, []) and b"its code has one" in body

    built = next(one for one in etcd.settled("free", "Succeeded", 1)["conditions"] if one["type"] == "Built")
    assert "/v1/functions/free/lock" in built["message"]
    assert "$ npm install" in berth.run("logs", "function/free")
    status, _, made = berth.control("/v1/functions/free/lock")
    _, answer = ask(berth, "free", {"text": "2h"})
    assert status == 200 and json.loads(made)["packages"]["node_modules/ms"]["version"] == answer["version"] != "2.1.2"
    digest = {"sha256": hashlib.sha256(made).hexdigest()}
    assert byproducts(berth, "free") == [{"name": "package-lock.json", "digest": digest}]


@pytest.mark.timeout(600)
def test_the_lock_of_python_is_a_list_for_the_code(berth, etcd, tmp_path):
    start(berth, etcd)
    etcd.put(function("six", archive(tmp_path, "free.zip", {"handler.py": SIX, "requirements.txt": "six>=1.16\n"}), probe={}))
    etcd.settled("six", "Succeeded", 1)
    version = ask(berth, "six", {})[1]["version"]
    status, headers, made = berth.control("/v1/functions/six/lock")
    assert (status, made.decode()) == (200, f"six=={version}\n") and headers["content-type"].startswith("text/plain")
    assert [one["name"] for one in byproducts(berth, "six")] == ["requirements.lock"]
    # With it in the code, nothing is left to choose.
    locked = {"handler.py": SIX, "requirements.txt": "six>=1.16\n", "requirements.lock": made}
    etcd.put(function("six", archive(tmp_path, "locked.zip", locked), 2, probe={}))
    etcd.settled("six", "Succeeded", 2)
    assert ask(berth, "six", {}) == (200, {"version": version})
    assert (berth.control("/v1/functions/six/lock")[0], byproducts(berth, "six")) == (404, [])


@pytest.fixture
def s3(tmp_path):
    """An object store that verifies signatures (crates/worker/examples/s3_server.rs)."""
    server, port = Process("s3", tmp_path / "s3"), free_port()
    buckets, keys = server.folder / "buckets", server.folder / "keys"
    (buckets / "code" / "words").mkdir(parents=True)
    keys.write_text("reader vErYhIdden\n")
    server.spawn(os.environ["S3_SERVER"], f"127.0.0.1:{port}", str(buckets), str(keys))
    try:
        until("the object store", lambda: listens(port))
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.close()


@pytest.mark.timeout(600)
def test_code_comes_from_s3(berth, etcd, s3, tmp_path):
    server, url = s3
    archive(server.folder / "buckets" / "code" / "words", "1.zip", {"handler.py": WORDS % 1})
    account = {
        "AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "vErYhIdden", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    start(berth, etcd, account)
    etcd.put(function("words", "s3://code/words/1.zip"))
    etcd.put(function("none", "s3://code/words/none.zip"))
    etcd.settled("words", "Succeeded", 1)
    assert ask(berth, "words", {"text": "a b"}) == (200, {"version": 1, "words": 2})
    assert "there is no s3://code/words/none.zip" in etcd.settled("none", "Failed", 1)["message"]
    # Its key is taken away.
    new = server.folder / "new"
    new.write_text("other vErYhIdden\n")
    new.replace(server.folder / "keys")
    etcd.put(function("denied", "s3://code/words/1.zip"))
    message = etcd.settled("denied", "Failed", 1)["message"]
    assert "cannot fetch s3://code/words/1.zip" in message and "vErYhIdden" not in message
    assert ask(berth, "words", {"text": "a"})[0] == 200
