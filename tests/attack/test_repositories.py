"""Git hosts that send what is meant to break Git: hosts that Berth reads from, and users that push to `berth registry serve`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from test_registry_roles import REGISTRY, Serving

from harness.processes import BERTH
from harness.waiting import PATIENCE, until

PEOPLE = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
}  # fmt: skip

# A file of submodules of each kind that ran code in old versions of Git.
OPTION = '[submodule "x"]\n\tpath = x\n\turl = -u./payload\n'
OUTSIDE = '[submodule "../../hooks"]\n\tpath = x\n\turl = https://git.example.com/x.git\n'


def git(folder: Path, *words: str, stdin: str | bytes = b"", ok: bool = True) -> str:
    stdin = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(["git", *words], cwd=folder, input=stdin, capture_output=True, timeout=PATIENCE, env=os.environ | PEOPLE)
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert (done.returncode == 0) == ok, f"git {' '.join(words)}: {said}"
    return said.strip()


def blob(folder: Path, text: str) -> str:
    return git(folder, "hash-object", "-w", "--stdin", stdin=text)


def entry(mode: str, name: str, id: str) -> bytes:
    return f"{mode} {name}\0".encode() + bytes.fromhex(id)


def tree(folder: Path, entries: dict[str, tuple[str, str]]) -> str:
    """Written as it stands: Git's own commands refuse most of it."""
    content = b"".join(entry(mode, name, id) for name, (mode, id) in entries.items())
    return git(folder, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=content)


def harmful(folder: Path, kind: str) -> str:
    """The tree of a commit that is meant to do harm."""
    if kind in ("option", "outside"):
        file = blob(folder, OPTION if kind == "option" else OUTSIDE)
        return tree(folder, {".gitmodules": ("100644", file)})
    inner = tree(folder, {"config": ("100644", blob(folder, "[core]\n\tsshCommand = touch /tmp/owned\n"))})
    if kind == "git folder":
        return tree(folder, {".git": ("40000", inner)})
    if kind == "way out":
        return tree(folder, {"..": ("40000", inner)})
    return tree(folder, {"a/b": ("100644", blob(folder, "x"))})


KINDS = ["option", "outside", "git folder", "way out", "slash"]


def commit(folder: Path, tree: str, *parents: str) -> str:
    return git(folder, "commit-tree", tree, "-m", "x", *(word for parent in parents for word in ("-p", parent)))


class Registry:
    """A registry as `berth registry init` makes it."""

    def __init__(self, folder: Path):
        self.bare = folder / "registry.git"
        work = folder / "registry"
        subprocess.run([BERTH, "registry", "init", str(work)], check=True, capture_output=True, timeout=PATIENCE)
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare))
        git(work, "init", "--quiet", "--initial-branch=main")
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "-m", "x")
        git(work, "push", "--quiet", str(self.bare), "main")

    @property
    def tip(self) -> str:
        return git(self.bare, "rev-parse", "refs/heads/main")

    def show(self, tree: str, *parents: str) -> str:
        made = commit(self.bare, tree, *parents)
        git(self.bare, "update-ref", "refs/heads/main", made)
        return made


def test_what_a_host_sends_is_checked_before_it_is_read(berth, tmp_path):
    """Each is refused with a reason, what was applied stays, and the next good commit is followed."""
    registry = Registry(tmp_path)
    berth.start("--source", f"git=git+file://{registry.bare}#main", "--local-repositories", "--source-interval", "1s")

    def source() -> dict:
        items = json.loads(berth.control("/v1/sources")[2])["items"]
        return items[0]["status"] if items else {}

    until("the first commit", lambda: source().get("applied") == registry.tip)
    for kind in KINDS:
        good = registry.tip
        bad = registry.show(harmful(registry.bare, kind), good)
        problem = until(f"{kind} to be refused", lambda: source().get("problem"))
        assert "fsck" in problem or "malformed" in problem, (kind, problem)
        assert source()["applied"] != bad, kind
        registry.show(git(registry.bare, "rev-parse", f"{good}^{{tree}}"), good)
        until(f"the commit after {kind}", lambda: source()["seen"] == registry.tip and not source().get("problem"))
    assert not list(berth.data.rglob("owned")) and berth.control("/readyz")[0] == 200


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    server = Serving(tmp_path_factory.mktemp("registry"))
    yield server
    server.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_users_push_is_checked(serving, tmp_path, kind):
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    made = commit(tmp_path, harmful(tmp_path, kind))
    url = f"http://of-ops:{serving.tokens['ops']}@{serving.address}/{REGISTRY}.git"
    said = git(tmp_path, "push", url, f"{made}:refs/heads/main", ok=False)
    assert "fsck" in said or "malformed" in said or "unpack" in said, said
    assert "refs/heads/main" not in git(tmp_path, "ls-remote", url)
