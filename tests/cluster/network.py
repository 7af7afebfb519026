"""Machines in network namespaces: every one has an address of its own, and its links can be cut, thinned and slowed.

One namespace holds the switch (a bridge); every host is a namespace with one cable to it. Names carry the number of the
process and of the network, so that networks of several runs and workers stand side by side; all of them may use the same
addresses, since no packet leaves its switch. Needs root, iproute2 and iptables; the kernel needs no netem: loss is an iptables rule,
narrow links are a token bucket (tbf), and delay is a proxy (`delay.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator

from harness.namespaces import inside

# A range for tests that no network of a machine uses (RFC 2544).
RANGE = "198.18.77"

# Networks of this process so far.
NUMBERS = itertools.count()


def ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


class Host:
    """One machine: a namespace with the address `address`."""

    def __init__(self, network: "Network", name: str, number: int):
        self.network = network
        self.name = name
        self.address = f"{RANGE}.{number}"
        self.space = f"{network.prefix}{name}"
        # A name within the switch; the kernel allows 15 characters.
        self.port = f"port{number}"
        ip("netns", "add", self.space)
        ip("link", "add", "eth0", "netns", self.space, "type", "veth", "peer", "name", self.port, "netns", network.switch)
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("-n", self.space, "link", "set", "eth0", "up")
        ip("-n", network.switch, "link", "set", self.port, "master", "switch", "up")

    def command(self, *arguments: str) -> list[str]:
        """The same command, run on this machine."""
        return ["ip", "netns", "exec", self.space, *arguments]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread creates meanwhile belong to this machine, and stay there."""
        with inside(f"/run/netns/{self.space}"):
            yield

    def _iptables(self, *arguments: str) -> None:
        # One lock serves all namespaces of a machine: other workers may hold it.
        subprocess.run(self.command("iptables", "-w", "60", *arguments), check=True, capture_output=True, text=True)

    def cut(self, *others: "Host") -> None:
        """Nothing passes between this machine and those, in either direction."""
        for other in others:
            self._iptables("-A", "INPUT", "-s", other.address, "-j", "DROP")
            self._iptables("-A", "OUTPUT", "-d", other.address, "-j", "DROP")

    def deafen(self, *others: "Host") -> None:
        """This machine does not hear those; they hear it: a partition in one direction."""
        for other in others:
            self._iptables("-A", "INPUT", "-s", other.address, "-j", "DROP")

    def lose(self, percent: float) -> None:
        """So many of the packets that come in are lost."""
        self._iptables("-A", "INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", f"{percent / 100:.4f}", "-j", "DROP")

    def narrow(self, rate: str) -> None:
        """Limits the traffic that goes out, e.g. to `20mbit`."""
        arguments = ("qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
        subprocess.run(["tc", "-n", self.space, *arguments], check=True, capture_output=True, text=True)

    def unplug(self) -> None:
        """The cable is out."""
        ip("-n", self.network.switch, "link", "set", self.port, "down")

    def heal(self) -> None:
        """Everything passes again."""
        for chain in ("INPUT", "OUTPUT"):
            self._iptables("-F", chain)
        subprocess.run(["tc", "-n", self.space, "qdisc", "del", "dev", "eth0", "root"], capture_output=True)
        ip("-n", self.network.switch, "link", "set", self.port, "up")


class Network:
    """A switch and the machines on it."""

    def __init__(self):
        self.prefix = f"berth-{os.getpid()}-{next(NUMBERS)}-"
        self.switch = f"{self.prefix}switch"
        self.hosts: list[Host] = []
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")

    def host(self, name: str) -> Host:
        host = Host(self, name, len(self.hosts) + 1)
        self.hosts.append(host)
        return host

    def close(self) -> None:
        """Everything goes with the namespaces."""
        for host in self.hosts:
            ip("netns", "del", host.space, check=False)
        ip("netns", "del", self.switch, check=False)
