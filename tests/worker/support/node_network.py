"""A network of machines that can be cut: a network namespace for each, and a switch between them.

All files and processes are those of this machine. Needs root and iproute2.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CARD: Final = "eth0"
NETWORK: Final = "10.77"
"""The first two numbers of all addresses."""
NEEDED: Final = ("ip", "ss", "bridge")
"""Programs of iproute2."""
FORWARDS, DROPS = "3", "0"
"""States of a port of the switch."""
NUMBERS: Final = itertools.count()
"""Numbers of the networks of this process."""


class NotPossible(Exception):
    """This machine cannot have such a network; the message says why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine in the network."""

    name: str
    port: str
    """Its port of the switch."""
    address: str

    @property
    def namespace(self) -> str:
        """The file of its network namespace."""
        return f"/run/netns/{self.name}"


class NodeNetwork:
    """Machines and their connections."""

    def __init__(self) -> None:
        self._name = f"hf{os.getpid()}-{next(NUMBERS)}"
        self._switch = f"{self._name}-switch"
        self._machines: list[Machine] = []

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[NodeNetwork]:
        """A network without machines. They are removed at the end.

        Raises:
            NotPossible: this machine cannot have one.
        """
        missing = [program for program in NEEDED if not shutil.which(program)]
        if missing or os.geteuid():
            lacks = f"needs {', '.join(missing)} of iproute2" if missing else "needs root"
            raise NotPossible(f"a network of several machines {lacks}")
        network = cls()
        try:
            network._start()
            yield network
        finally:
            network._close()

    def _start(self) -> None:
        try:
            _ip("netns", "add", self._switch)
            _ip("link", "add", "br0", "type", "bridge", inside=self._switch)
        except subprocess.CalledProcessError as error:
            raise NotPossible(f"there are no network namespaces: {error.stderr.strip()}") from error
        _ip("link", "set", "br0", "up", inside=self._switch)

    def _close(self) -> None:
        for name in (*(machine.name for machine in self._machines), self._switch):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def add(self) -> Machine:
        """Add a machine."""
        number = len(self._machines) + 1
        name, port = f"{self._name}-{number}", f"v{number}"
        machine = Machine(name, port, f"{NETWORK}.{number // 256}.{number % 256}")
        _ip("netns", "add", name)
        self._machines.append(machine)
        there = ["peer", "name", CARD, "netns", name]
        _ip("link", "add", port, "netns", self._switch, "type", "veth", *there)
        _ip("link", "set", port, "master", "br0", "up", inside=self._switch)
        _ip("address", "add", f"{machine.address}/16", "dev", CARD, inside=name)
        for card in ("lo", CARD):
            _ip("link", "set", card, "up", inside=name)
        return machine

    def cut_off(self, machine: Machine, *, breaks: bool) -> None:
        """Cut a machine off from all others. Its packets and those to it are lost.

        `breaks`: its connections end, as after a reset; otherwise they seem to stand.
        """
        self._set_port(machine, DROPS)
        if breaks:
            _kill_connections(machine, f"dst {NETWORK}.0.0/16")
            for other in self._machines:
                _kill_connections(other, f"dst {machine.address}")

    def reconnect(self, machine: Machine) -> None:
        """Undo `cut_off`."""
        self._set_port(machine, FORWARDS)

    def cut_ports(
        self, machine: Machine, other: Machine, ports: Sequence[int], *, breaks: bool
    ) -> None:
        """Cut the connections of a machine to these ports of another one, and no others; `breaks`: see `cut_off`."""
        self._rule_ports("add", machine, other, ports)
        if breaks:
            first, last = f":{min(ports)}", f":{max(ports)}"
            _kill_connections(machine, f"dst {other.address} dport >= {first} dport <= {last}")
            _kill_connections(other, f"dst {machine.address} sport >= {first} sport <= {last}")

    def reconnect_ports(self, machine: Machine, other: Machine, ports: Sequence[int]) -> None:
        """Undo `cut_ports`."""
        self._rule_ports("delete", machine, other, ports)

    def _set_port(self, machine: Machine, state: str) -> None:
        words = ["bridge", "link", "set", "dev", machine.port, "state", state]
        _run("ip", "netns", "exec", self._switch, *words)

    @staticmethod
    def _rule_ports(action: str, machine: Machine, other: Machine, ports: Sequence[int]) -> None:
        """Add or delete rules that drop what both machines send."""
        for own, peer, side in ((machine, other, "dport"), (other, machine, "sport")):
            which = ["ipproto", "tcp", side, f"{min(ports)}-{max(ports)}"]
            _ip("rule", action, "to", peer.address, *which, "blackhole", inside=own.name)


def _kill_connections(machine: Machine, which: str) -> None:
    if Path(machine.namespace).exists():
        _run("ip", "netns", "exec", machine.name, "ss", "--kill", *which.split())


def _ip(*words: str, inside: str = "") -> None:
    _run("ip", *(("-netns", inside) if inside else ()), *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=30)
