"""A shell in which a page is followed: with ports, processes and a home folder of its own, and a proxy to the outside.

Pages name ports such as 8080 word by word, so each shell has a network of its own (a namespace, which takes root). Package
indexes are reached through a proxy that listens there and connects from here.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from pathlib import Path

from .groups import Groups
from .namespaces import inside
from .pages import Page, Step, difference
from .waiting import PATIENCE, until

PROXY = 3128

# For preparations: `serve ARGUMENTS` starts `berth up` and waits until it answers; `begins COMMAND` waits until a command succeeds.
FUNCTIONS = """
begins() { until "$@" > /dev/null 2>&1; do sleep 0.1; done; }
serve() { berth up "$@" & begins berth get nodes; }
"""


class Failed(AssertionError):
    """A command of a page did not do what the page says."""


class Terminal:
    """`folder` is the folder that the reader works in; `program` starts the shell, by default bash."""

    def __init__(self, folder: Path, environment: dict[str, str], program: list[str] | None = None):
        self.folder, self.number = folder, 0
        self.outputs = folder.parent / f"{folder.name}.out"
        for place in (folder, self.outputs):
            place.mkdir(parents=True, exist_ok=True)
        self.times: list[tuple[float, str]] = []
        reader, writer = os.pipe()
        self.groups = Groups(folder.name)
        # With the first process all others of the namespace end.
        apart = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        proxy = f"http://127.0.0.1:{PROXY}"
        environment = environment | {"HTTPS_PROXY": proxy, "https_proxy": proxy, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
        self.shell = subprocess.Popen(
            self.groups.command([*apart, *(program or ["bash", "--noprofile", "--norc"])]),
            stdin=subprocess.PIPE, text=True, cwd=folder, env=environment, pass_fds=[writer], start_new_session=True,
        )  # fmt: skip
        os.close(writer)
        self.statuses, self.writer = os.fdopen(reader, "rb", buffering=0), writer
        self._do(f"trap 'echo ended >&{writer}' EXIT; ip link set lo up; set -o pipefail; cd '{folder}'\n{FUNCTIONS}", PATIENCE)
        self._open_proxy()

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        self.groups.close()
        self.statuses.close()
        self.listener.close()

    # === the reader ===

    def follow(self, name: str, page: Page) -> None:
        """Does what the page says; the first thing that differs from it is the failure."""
        for step in page.steps:
            try:
                self._step(step)
            except Failed as failed:
                raise Failed(f"{name}:{step.line}: {failed}") from None

    def _step(self, step: Step) -> None:
        if step.kind == "file":
            # Where the shell is, not where it began.
            content = f"cat > '{step.name}' <<'END_OF_FILE'\n{step.text}\nEND_OF_FILE"
            self._checked(f"mkdir -p \"$(dirname '{step.name}')\"\n{content}", step.line)
        elif step.kind == "python":
            self._checked(f"\"$PYTHON/python\" - <<'END_OF_PROGRAM'\n{step.text}\nEND_OF_PROGRAM", step.line)
        elif step.kind == "console":
            commands = step.commands()
            for command in commands:
                if step.stays and command is commands[-1]:
                    self._starts(command)
                else:
                    self._compared(command, step.fails and command is commands[-1])
        else:
            self._checked(step.text, step.line)

    def _checked(self, text: str, line: int) -> None:
        """Commands each of which has to succeed."""
        began = time.monotonic()
        status, output = self._run(f"set -e\n{text}\nset +e")
        self.times.append((time.monotonic() - began, text.strip()))
        if status != 0:
            raise Failed(f"a command failed with {status}\n{text}\n--- output\n{output[-4000:]}")

    def _compared(self, command, fails: bool) -> None:
        began = time.monotonic()
        status, output = self._run(command.text)
        self.times.append((time.monotonic() - began, command.text))
        differs = difference(command.shown, output.splitlines())
        if differs:
            raise Failed(f"line {command.line}: {command.text}\n{differs}\n--- output\n{output[-4000:]}")
        if (status > 0) != fails or status < 0:
            wanted = ", and the page says that it fails" if fails else ""
            raise Failed(f"line {command.line}: ended with {status}{wanted}\n{command.text}\n--- output\n{output[-4000:]}")

    def _starts(self, command) -> None:
        output = self._output()
        assert "#" not in command.text, f"line {command.line}: no comment behind a command that stays"
        began = time.monotonic()
        self._do(f"{command.text} > '{output}' 2>&1 </dev/null &", PATIENCE)

        def ready() -> bool:
            self._alive()
            return difference([*command.shown, "…"], output.read_text().splitlines()) is None

        try:
            until("ready", ready)
        except AssertionError:
            there = output.read_text()
            raise Failed(f"line {command.line}: {command.text}\n{difference([*command.shown, '…'], there.splitlines())}\n--- output\n{there[-4000:]}") from None
        self.times.append((time.monotonic() - began, command.text))

    # === the shell ===

    def _output(self) -> Path:
        self.number += 1
        place = self.outputs / str(self.number)
        place.touch()
        return place

    def _run(self, text: str) -> tuple[int, str]:
        output = self._output()
        status = self._do(f"{{\n{text}\n}} > '{output}' 2>&1 </dev/null", 2 * PATIENCE)
        return status, output.read_text(errors="replace")

    def _do(self, text: str, patience: float) -> int:
        """Runs it in the shell; -1 if that ended."""
        with contextlib.suppress(BrokenPipeError):
            self.shell.stdin.write(f"{text}\necho $? >&{self.writer}\n")
            self.shell.stdin.flush()
        end, said = time.monotonic() + patience, b""
        while not said.endswith(b"\n"):
            if not select.select([self.statuses], [], [], max(0, end - time.monotonic()))[0]:
                raise Failed(f"it did not end within {patience:.0f} s: {text}")
            more = self.statuses.read(64)
            if not more:
                return -1
            said += more
        word = said.decode().split()[0]
        return -1 if word == "ended" else int(word)

    def _alive(self) -> None:
        if self.shell.poll() is not None:
            raise Failed("the shell ended")

    # === the way out ===

    def _open_proxy(self) -> None:
        children = Path(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children")
        with inside(f"/proc/{until('the shell', children.read_text).split()[0]}/ns/net"):
            self.listener = socket.create_server(("127.0.0.1", PROXY), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=_tunnel, args=(client,), daemon=True).start()


def _tunnel(client: socket.socket) -> None:
    """One CONNECT, and bytes both ways until either side has had enough."""
    with client, contextlib.suppress(OSError, ValueError, IndexError):
        client.settimeout(PATIENCE)
        head = b""
        while b"\r\n\r\n" not in head and len(head) < 8192:
            more = client.recv(4096)
            if not more:
                return
            head += more
        method, target = head.split(b"\r\n")[0].decode().split()[:2]
        if method != "CONNECT":
            client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        host, port = target.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join(PATIENCE)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
