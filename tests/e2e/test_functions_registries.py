"""The network of the step that fetches packages: registries of this server, and no other host."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tarfile

import pytest

from harness.functions import BUILD, Etcd, archive, ask, function
from harness.http_server import Answer, HttpServer, Request
from harness.waiting import until

HANDLER = "exports.handler = () => ({ said: require('tiny') });\n"
SPEC = {"type": "javascript", "entrypoint": "handler.handler", "probe": {}}


def package() -> bytes:
    """A package of npm."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in {"package.json": '{"name": "tiny", "version": "1.0.0"}', "index.js": "module.exports = 'hello';\n"}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


class Registry(HttpServer):
    """A registry of npm with one package, which remembers what it was asked. Also a proxy that answers for every registry."""

    def __init__(self):
        self.asked: list[str] = []
        self.package = package()
        super().__init__()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, request: Request) -> Answer:
        self.asked.append(request.path)
        path = re.sub(r"^http://[^/]*", "", request.path)
        if path.endswith(".tgz"):
            return Answer(200, {"content-type": "application/octet-stream"}, self.package)
        if path != "/tiny":
            return Answer(404)
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(self.package).digest()).decode()
        tarball = f"http://{request.headers['host']}/tiny/-/tiny-1.0.0.tgz"
        version = {"name": "tiny", "version": "1.0.0", "dist": {"tarball": tarball, "integrity": integrity}}
        body = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        return Answer(200, {"content-type": "application/json"}, json.dumps(body).encode())


@pytest.fixture
def registry():
    registry = Registry()
    yield registry
    registry.close()


@pytest.fixture
def etcd(tmp_path):
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.close()


def start(berth, etcd, *arguments: str, env: dict[str, str] | None = None):
    return berth.start("--source", f"etcd={etcd.client}", "--function-target", "local", *arguments, env=env)


def code(folder, wanted: str, **more: str) -> str:
    """A function that says what its one dependency says; its URI."""
    files = {"handler.js": HANDLER, "package.json": json.dumps({"private": True, "dependencies": {"tiny": wanted}})}
    return archive(folder, "code.zip", files | more)


def kept_to_registries(berth) -> None:
    """Waits until the first step that fetches has tried what this machine allows."""
    line = until("the network of builds", lambda: next((one for one in berth.logged_lines() if "function_fetch_network" in one), None), BUILD)
    if "registries" not in line:
        pytest.skip("this machine allows no network of its own")


@pytest.mark.timeout(900)
def test_a_package_at_the_address_of_another_host_is_not_fetched(berth, etcd, registry, tmp_path):
    """A service of this machine stands for etcd, the control API and the metadata of a cloud."""
    start(berth, etcd)
    tarball = f"{registry.url}/tiny/-/tiny-1.0.0.tgz"
    # The code would have npm ask without the proxy.
    direct = {".npmrc": "noproxy=127.0.0.1\nproxy=null\nhttps-proxy=null\n"}
    etcd.put(function("js", code(tmp_path, tarball, **direct), **SPEC))
    wheel = f"tiny @ {registry.url}/tiny-1.0.0-py3-none-any.whl\n"
    python = {"handler.py": "def predict(body):\n    return body\n", "requirements.txt": wheel}
    etcd.put(function("py", archive(tmp_path, "py.zip", python)))
    told = f"the build asked for {registry.host}, which is no registry of this server: add it with --function-build-hosts {registry.host}"
    kept_to_registries(berth)
    messages = {name: etcd.settled(name, "Failed", 1)["message"] for name in ("js", "py")}
    assert registry.asked == []
    for name, message in messages.items():
        assert told in message, message
        assert told in berth.run("logs", f"function/{name}")

    # The operator adds it.
    assert berth.stop() == 0
    start(berth, etcd, "--function-build-hosts", registry.host)
    etcd.put(function("js", code(tmp_path, tarball), 2, **SPEC))
    etcd.settled("js", "Succeeded", 2)
    assert ask(berth, "js", {}) == (200, {"said": "hello"}) and registry.asked


@pytest.mark.timeout(600)
def test_a_registry_of_this_network_is_named_by_the_environment(berth, etcd, registry, tmp_path):
    start(berth, etcd, env={"npm_config_registry": registry.url})
    etcd.put(function("js", code(tmp_path, "1.0.0"), **SPEC))
    etcd.settled("js", "Succeeded", 1)
    assert ask(berth, "js", {}) == (200, {"said": "hello"})
    assert registry.asked[0] == "/tiny"


@pytest.mark.timeout(600)
def test_registries_are_reached_through_the_proxy_of_the_machine(berth, etcd, registry, tmp_path):
    """The name of the registry is known to nobody else."""
    proxy = f"http://user:word@{registry.host}"
    variables = {"npm_config_registry": "http://registry.test/", "http_proxy": proxy, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    start(berth, etcd, env=variables)
    etcd.put(function("js", code(tmp_path, "1.0.0"), **SPEC))
    etcd.settled("js", "Succeeded", 1)
    assert ask(berth, "js", {}) == (200, {"said": "hello"})
    assert all(re.match(r"http://registry\.test(:80)?/tiny", path) for path in registry.asked) and registry.asked
