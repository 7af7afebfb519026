"""Packages as users get them: installed into folders that know nothing of a checkout, and started there.

`cargo xtask test` makes them from the binary of the tests and sets PACKAGES to their folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from harness.examples import ARTIFACTS, IRIS
from harness.ports import free_port
from harness.processes import Process
from harness.waiting import until

PACKAGES = Path(os.environ["PACKAGES"])
# A user's environment: nothing that points into a checkout.
PLAIN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
KEPT = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CERT", "SSL_CERT_FILE")
PLAIN |= {name: os.environ[name] for name in KEPT if name in os.environ}


def package(pattern: str) -> Path:
    found = [path for path in PACKAGES.glob(pattern) if not path.name.endswith(".sha256")]
    assert len(found) == 1, f"{pattern} in {PACKAGES}: {found}"
    return found[0]


def run(*command: object, code: int = 0, cwd: Path | None = None, env: dict | None = None) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, cwd=cwd, env=PLAIN | (env or {}))
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def checks(berth: Path, folder: Path) -> dict[str, dict]:
    """What `berth doctor` says, by the name of the check."""
    text = subprocess.run(
        [berth, "doctor", "-o", "json", "--data", folder / "data", "--http", f"127.0.0.1:{free_port()}", "--api", f"127.0.0.1:{free_port()}"],
        capture_output=True, text=True, timeout=60, env=PLAIN | {"HOME": str(folder)},
    ).stdout
    return {check["name"]: check for check in json.loads(text)}


class Server(Process):
    """A server of an installed `berth`, with one model."""

    def __init__(self, folder: Path, *command: str, data: str, models: str):
        super().__init__("berth", folder)
        self.http = f"127.0.0.1:{free_port()}"
        arguments = ["up", models, "--data", data, "--http", self.http, "--api", f"127.0.0.1:{free_port()}"]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=PLAIN | {"HOME": str(folder)})

    def answers(self) -> bool:
        assert self.runs(), self.logged()
        request = urllib.request.Request(f"http://{self.http}/v2/models/iris/infer", json.dumps(IRIS).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status == 200 and "outputs" in json.load(answer)
        except OSError:
            return False

    def serves(self) -> None:
        until("an answer of the model", self.answers)
        assert self.stop() == 0, self.logged()


def declare(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ARTIFACTS / "iris.onnx", folder / "iris.onnx")
    (folder / "iris.yaml").write_text(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {name: iris}\nspec:\n  model: {format: onnx, uri: 'file:iris.onnx'}\n"
    )
    return folder


def test_archive(tmp_path: Path) -> None:
    archive, prefix = package("berth-*-linux-*.tar.gz"), tmp_path / "prefix"
    installer = PACKAGES / "install.sh"
    assert re.search(r"glibc 2\.\d+ or later", installer.read_text()), "the version that the binary needs"
    said = run("sh", installer, "--prefix", prefix)
    assert f"installed berth" in said and str(prefix) in said, said
    berth = prefix / "bin/berth"
    found = checks(berth, tmp_path)
    assert found["onnx engine"] == {"name": "onnx engine", "verdict": "ok", "found": str((prefix / "lib/berth/libonnxruntime.so").resolve())}
    Server(tmp_path, str(berth), data=str(tmp_path / "data"), models=str(declare(tmp_path / "models"))).serves()
    run("sh", installer, "--prefix", prefix, "--uninstall")
    assert not berth.exists() and not (prefix / "lib/berth").exists() and (tmp_path / "data").exists()

    # One that was changed on its way is refused whole.
    changed = tmp_path / archive.name
    changed.write_bytes(archive.read_bytes()[:-1] + b"\0")
    shutil.copy(f"{archive}.sha256", f"{changed}.sha256")
    said = run("sh", installer, "--from", changed, "--prefix", prefix, code=1)
    assert "checksum" in said and not berth.exists(), said
    said = run("sh", installer, "--from", tmp_path / "nothing.tar.gz", "--prefix", prefix, code=1)
    assert "cannot fetch" in said, said


def test_archive_lists_what_it_is_made_of() -> None:
    with tarfile.open(package("berth-*-linux-*.tar.gz")) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
        bill = next(name for name in archive.getnames() if name.endswith("sbom.cdx.json"))
        components = {each["name"]: each for each in json.load(archive.extractfile(bill))["components"]}
    assert {"bin/berth", "lib/berth/libonnxruntime.so", "install.sh", "share/man/man1/berth.1"} <= names
    assert {"tokio", "berth-plan", "onnxruntime"} <= components.keys() and "proptest" not in components
    assert all(each["licenses"][0]["expression"] for each in components.values())


def test_wheel(tmp_path: Path) -> None:
    wheel = package("berth-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = tmp_path / "venv/bin/pip"
    run(pip, "install", "--quiet", "--disable-pip-version-check", wheel)
    berth = tmp_path / "venv/bin/berth"
    found = checks(berth, tmp_path)
    assert found["onnx engine"]["verdict"] == "ok" and str(tmp_path) in found["onnx engine"]["found"], found
    assert found["uv"] == {"name": "uv", "verdict": "ok", "found": str(tmp_path / "venv/bin/uv")}
    Server(tmp_path, str(berth), data=str(tmp_path / "data"), models=str(declare(tmp_path / "models"))).serves()
    run(pip, "uninstall", "--yes", "--quiet", "--disable-pip-version-check", "berth")
    assert not berth.exists() and not list((tmp_path / "venv").rglob("libonnxruntime*"))


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no Debian")
def test_deb(tmp_path: Path) -> None:
    deb = package("berth_*.deb")
    facts = run("dpkg-deb", "--field", deb)
    assert "Package: berth" in facts and "Depends: libc6 (>= 2." in facts, facts
    run("dpkg-deb", "--extract", deb, tmp_path / "root")
    run("dpkg-deb", "--control", deb, tmp_path / "control")
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", tmp_path / "control" / script)
    owners = {line.split()[1] for line in run("dpkg-deb", "--contents", deb).splitlines() if line}
    assert owners == {"root/root"}
    berth = tmp_path / "root/usr/bin/berth"
    found = checks(berth, tmp_path)
    assert found["onnx engine"]["found"] == str(tmp_path / "root/usr/lib/berth/libonnxruntime.so")
    assert "Delegate=yes" in (tmp_path / "root/usr/lib/systemd/system/berth.service").read_text()
    settings = run(berth, "config", "show", "--config", tmp_path / "root/etc/berth/berth.yaml", env={"HOME": str(tmp_path)})
    assert "/var/lib/berth" in settings, settings


# This system in a mount namespace of its own: all that an installation changes lies on a tmpfs above it. /run is empty, as in a
# container without systemd. Ends with its standard input.
LAYERS = """
set -e
layers=$1
mkdir -p "$layers"
mount -t tmpfs layers "$layers"
for name in usr etc var; do
  mkdir -p "$layers/$name" "$layers/work/$name"
  mount -t overlay overlay -o "lowerdir=/$name,upperdir=$layers/$name,workdir=$layers/work/$name" "/$name"
done
mount -t tmpfs run /run
echo ready
exec cat
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("dpkg"), reason="an installation takes root and Debian")
def test_deb_is_installed_serves_as_its_user_and_is_purged(tmp_path: Path) -> None:
    deb, models = package("berth_*.deb"), declare(tmp_path / "models")
    for needed in ("adduser", "ca-certificates"):
        if subprocess.run(["dpkg-query", "--show", needed], capture_output=True).returncode != 0:
            pytest.skip(f"the package depends on {needed}, which this machine does not have")
    command = ["unshare", "--mount", "sh", "-c", LAYERS, "sh", str(tmp_path / "layers")]
    system = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN)
    try:
        if system.stdout.readline() != "ready\n":
            pytest.skip(f"this machine has no overlay file systems: {system.stderr.read()}")
        inside = ["nsenter", f"--mount=/proc/{system.pid}/ns/mnt", "--"]
        # The second time as an update does.
        for _ in range(2):
            run(*inside, "dpkg", "--install", deb, env={"DEBIAN_FRONTEND": "noninteractive"})
        assert run(*inside, "stat", "-c", "%U %G %a", "/var/lib/berth").strip() == "berth berth 700"
        # The user reads no folder of root's.
        run(*inside, "cp", "-r", models, "/var/models")
        run(*inside, "chmod", "-R", "a+rX", "/var/models")
        as_berth = [*inside, "setpriv", "--reuid=berth", "--regid=berth", "--init-groups"]
        Server(tmp_path, *as_berth, "/usr/bin/berth", data="/var/lib/berth", models="/var/models").serves()
        run(*inside, "test", "-e", "/var/lib/berth/state.redb")
        run(*inside, "dpkg", "--purge", "berth", env={"DEBIAN_FRONTEND": "noninteractive"})
        for gone in ("/usr/bin/berth", "/usr/lib/berth", "/etc/berth", "/var/lib/berth"):
            run(*inside, "test", "!", "-e", gone)
    finally:
        system.kill()
        system.communicate()


# The root as `podman run --read-only --tmpfs /tmp -v …:/var/lib/berth` makes it, with what a container engine gives besides:
# processes and devices.
READ_ONLY = """
set -e
root=$1 data=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount --bind "$data" "$root/var/lib/berth"
mount -o remount,bind,ro "$root"
if touch "$root/etc/written" 2>/dev/null; then echo "the root can be written to"; exit 1; fi
exec chroot --userspec=65532:65532 "$root" /usr/bin/berth "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a root of its own takes root")
def test_image_serves_as_a_user_in_a_root_that_is_read_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with tarfile.open(package("berth-*-oci.tar")) as image:
        index = json.load(image.extractfile("index.json"))
        blob = lambda digest: image.extractfile("blobs/" + digest.replace(":", "/"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        config = json.load(blob(manifest["config"]["digest"]))["config"]
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"])) as files:
                files.extractall(root, filter="fully_trusted")
    assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/usr/bin/berth"]
    models = declare(root / "models")
    for name in ("proc", "dev"):
        (root / name).mkdir()
    data = tmp_path / "volume"
    data.mkdir(mode=0o700)
    os.chown(data, 65532, 65532)
    inside = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(root), str(data)]
    Server(tmp_path, *inside, data="/var/lib/berth", models="/models").serves()
    assert (data / "state.redb").exists() and models.exists()
