"""Functions that are built in containers: `--function-builder-image`, with a real podman and an image of this machine's Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from harness.functions import BUILD, Etcd, archive, ask, function
from harness.processes import BERTH
from harness.waiting import until

MISSING = "podman is not on this machine: `apt-get install podman runc` has this test run"
if shutil.which("podman") is None:
    print(f"tests/e2e/test_functions_container.py is skipped: {MISSING}", file=sys.__stderr__)
pytestmark = pytest.mark.skipif(shutil.which("podman") is None, reason=MISSING)

IMAGE = "localhost/berth-test-builder"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# What containers need on machines with cgroups of both versions, and limits that may not be raised.
CONTAINERS = """
[containers]
default_ulimits = ["nofile=10000:10000", "nproc=20000:20000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""

HANDLER = "import six\ndef predict(body):\n    return {'six': six.__version__, 'times': body['n'] * 2}\n"


def libraries(program: Path) -> set[str]:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+)", said))


def pack(image: Path) -> None:
    """A root with this machine's Python, pip, node and npm, and what they load: no registry of images is needed."""
    prefix = Path(sys.base_prefix)
    programs = [Path("/bin/sh"), Path(sys.executable).resolve(), *prefix.glob("lib/python3*/lib-dynload/*.so")]
    programs += Path("/lib").glob("*-linux-gnu/libnss_*.so.2")
    uv = shutil.which("uv")
    programs += [Path(uv).resolve()] if uv else []
    node, npm = (Path(shutil.which(name)).resolve() for name in ("node", "npm"))
    programs += [node, Path("/usr/bin/env")]
    # Debian keeps the packages that npm loads beside it.
    package = npm.parents[1]
    modules = package.parent if package.parent.name == "nodejs" else package
    files = {str(program) for program in programs}.union(*map(libraries, programs))
    certificates = [path for path in (os.environ.get("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt") if path]

    seen = set()

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        """Each file once, without what a build does not need."""
        if entry.name in seen or seen.add(entry.name):
            return None
        name = f"{entry.name}/"
        big = ("/test/", "/tests/", "/__pycache__/", "/idlelib/", "/config-3")
        other = re.search(r"/(?:site|dist)-packages/(?!pip|$)", name)
        return None if other or any(part in name for part in big) or entry.name.endswith(".a") else entry

    with tarfile.open(image, "w", dereference=True) as root:
        for file in sorted(files.union(certificates)):
            if Path(file).is_file():
                root.add(file, arcname=file.lstrip("/"), filter=wanted)
        for folder in ("bin", *(str(path.relative_to(prefix)) for path in prefix.glob("lib/python3*"))):
            if prefix != Path("/usr") or folder != "bin":
                root.add(prefix / folder, arcname=str(prefix / folder).lstrip("/"), filter=wanted)
        root.add(modules, arcname=str(modules).lstrip("/"), filter=lambda entry: None if entry.name in seen else entry)
        for name, program in (("python3", Path(sys.executable)), ("uv", uv), ("node", node), ("npm", npm)):
            if program:
                link = tarfile.TarInfo(f"opt/builder/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, str(Path(program).resolve())
                root.addfile(link)


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    """Podman's environment, with the image in its store."""
    folder = tmp_path_factory.mktemp("podman")
    runtime = 'runtime = "runc"\n' if shutil.which("runc") or Path("/usr/sbin/runc").exists() else ""
    (folder / "containers.conf").write_text(CONTAINERS + runtime)
    # Folders of wheels on this machine are none of the image.
    env = {"CONTAINERS_CONF": str(folder / "containers.conf"), "PIP_FIND_LINKS": "", "UV_FIND_LINKS": ""}
    pack(folder / "image.tar")
    path = f"ENV PATH=/opt/builder:{sys.base_prefix}/bin:/usr/bin:/bin"
    command = ["podman", "import", "--change", path, str(folder / "image.tar"), IMAGE]
    subprocess.run(command, env=os.environ | env, check=True, capture_output=True, timeout=BUILD)
    (folder / "image.tar").unlink()
    yield env
    subprocess.run(["podman", "rmi", "--force", IMAGE], env=os.environ | env, capture_output=True, timeout=BUILD)


def containers(berth, podman: dict[str, str]) -> str:
    """The containers of this server's builds, running or not."""
    label = f"label=dev.berth.build={(berth.data / 'functions' / 'builds').resolve()}"
    command = ["podman", "ps", "--all", "--quiet", "--filter", label]
    return subprocess.run(command, env=os.environ | podman, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def etcd(tmp_path):
    etcd = Etcd(tmp_path)
    yield etcd
    etcd.close()


@pytest.mark.timeout(900)
def test_a_function_is_built_in_an_image(berth, etcd, podman, tmp_path):
    berth.start(
        "--source", f"etcd={etcd.client}", "--function-target", "local", "--function-builder-image", IMAGE, env=podman,
    )  # fmt: skip
    code = archive(tmp_path, "twice.zip", {"handler.py": HANDLER, "requirements.txt": "six==1.16.0\n"})
    etcd.put(function("twice", code, runtime={"pythonVersion": VERSION}, probe={"n": 1}))
    status = etcd.settled("twice", "Succeeded", 1)
    assert ask(berth, "twice", {"n": 21}) == (200, {"six": "1.16.0", "times": 42})
    identity = ["podman", "image", "inspect", "--format", "{{.Id}}", IMAGE]
    image = subprocess.run(identity, env=os.environ | podman, capture_output=True, text=True, check=True).stdout.strip()
    provenance = json.loads(berth.control("/v1/functions/twice/provenance")[2])
    internal = provenance["predicate"]["buildDefinition"]["internalParameters"]
    assert internal["isolation"] == "container" and image in internal["tools"]
    # The same inputs in the same image are not built again.
    etcd.put(function("twice", code, 2, runtime={"pythonVersion": VERSION}, env={"A": "1"}))
    again = etcd.settled("twice", "Succeeded", 2)
    assert again["build"]["cached"] and again["artifact"] == status["artifact"]

    # What the image lacks is told.
    etcd.put(function("old", code, runtime={"pythonVersion": "3.1"}))
    told = etcd.settled("old", "Failed", 1)["message"]
    assert f"has Python {VERSION}" in told and "--function-builder-image" in told
    until("every container to go with its step", lambda: containers(berth, podman) == "")


PERIOD = "import ms from 'ms';\nexport const handler = (body: { text: string }) => ({ milliseconds: ms(body.text) });\n"


@pytest.mark.timeout(900)
def test_javascript_is_built_in_an_image(berth, etcd, podman, tmp_path):
    """Packages by npm, one of which has an install script, and a bundle by esbuild: each a container."""
    berth.start(
        "--source", f"etcd={etcd.client}", "--function-target", "local", "--function-builder-image", IMAGE, env=podman,
    )  # fmt: skip
    package = {"private": True, "dependencies": {"ms": "2.1.3"}, "devDependencies": {"esbuild": "0.25.10"}}
    code = archive(tmp_path, "period.zip", {"package.json": json.dumps(package), "src/index.ts": PERIOD})
    spec = {"type": "javascript", "entrypoint": "dist/bundle.handler", "build": {"bundler": "esbuild"}, "probe": {"text": "1s"}}
    etcd.put(function("period", code, **spec))
    status = etcd.settled("period", "Succeeded", 1)
    assert ask(berth, "period", {"text": "2h"}) == (200, {"milliseconds": 7_200_000})
    log = berth.run("logs", "function/period")
    assert all(f"$ {step}" in log for step in ("npm install", "npm rebuild", "esbuild")), log
    identity = ["podman", "image", "inspect", "--format", "{{.Id}}", IMAGE]
    image = subprocess.run(identity, env=os.environ | podman, capture_output=True, text=True, check=True).stdout.strip()
    provenance = json.loads(berth.control("/v1/functions/period/provenance")[2])
    internal = provenance["predicate"]["buildDefinition"]["internalParameters"]
    assert internal["isolation"] == "container" and internal["tools"].startswith("node ") and image in internal["tools"]
    etcd.put(function("period", code, 2, env={"A": "1"}, **spec))
    again = etcd.settled("period", "Succeeded", 2)
    assert again["build"]["cached"] and again["artifact"] == status["artifact"]
    until("every container to go with its step", lambda: containers(berth, podman) == "")


@pytest.mark.timeout(900)
def test_a_build_that_hangs_and_is_replaced_leaves_nothing(berth, etcd, podman, tmp_path):
    berth.start(
        "--source", f"etcd={etcd.client}", "--function-target", "local", "--function-builder-image", IMAGE,
        env=podman | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(BUILD)
        wheel = f"http://127.0.0.1:{silent.getsockname()[1]}/six-1.16.0-py2.py3-none-any.whl"
        code = archive(tmp_path, "hangs.zip", {"handler.py": HANDLER, "requirements.txt": f"six @ {wheel}\n"})
        etcd.put(function("hangs", code, runtime={"pythonVersion": VERSION}))
        # The step has asked, and is never answered.
        asking, _ = silent.accept()
        with asking:
            assert containers(berth, podman) != ""
            plain = "def predict(body):\n    return body\n"
            code = archive(tmp_path, "plain.zip", {"handler.py": plain})
            etcd.put(function("hangs", code, 2, runtime={"pythonVersion": VERSION}))
            etcd.settled("hangs", "Succeeded", 2)
            until("its container to go", lambda: containers(berth, podman) == "")
    builds = berth.data / "functions" / "builds"

    def left() -> list[Path]:
        return [*(builds / "work").iterdir(), *(builds / "own").iterdir()]

    until(lambda: f"the folders of builds to go: {left()}", lambda: not left())


def test_an_image_needs_podman(berth, tmp_path):
    """The start says so, not the first build."""
    (tmp_path / "empty").mkdir()
    path = {"PATH": str(tmp_path / "empty")}
    berth.spawn(
        BERTH, "up", "--data", str(berth.data), "--http", berth.http, "--api", berth.api,
        "--function-builder-image", IMAGE, env=path,
    )  # fmt: skip
    assert berth.process.wait(60) != 0
    assert "--function-builder-image needs podman on the PATH" in berth.logged()

