"""The network of the cloud: loopback and a bridge to the hosts, without a route out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.fake_aws.paths import GATE, METADATA

NAME = "skycloud"
BRIDGE = "br0"
_FILE = Path("/run/netns") / NAME


class HasAWayOut(Exception):
    """Raised if the namespace has a default route, over which the internet could be reached."""


def up() -> None:
    """Create the namespace.

    Raises:
        HasAWayOut: it has a default route.
    """
    if not _FILE.exists():
        _ip("netns", "add", NAME)
    _inside("link", "set", "lo", "up")
    if not any(link["ifname"] == BRIDGE for link in _seen("link")):
        _inside("link", "add", BRIDGE, "type", "bridge")
        _inside("address", "add", f"{GATE}/16", "dev", BRIDGE)
        _inside("address", "add", f"{METADATA}/32", "dev", BRIDGE)
        _inside("link", "set", BRIDGE, "up")
    if any(route["dst"] == "default" for route in _seen("route")):
        raise HasAWayOut(f"the network namespace {NAME} has a default route; delete the namespace")


def down() -> None:
    """Remove the namespace once its last process has ended."""
    if _FILE.exists():
        _ip("netns", "delete", NAME)


def is_inside() -> bool:
    """Whether this process is in the namespace."""
    return _FILE.exists() and _FILE.stat().st_ino == Path("/proc/self/ns/net").stat().st_ino


def entering(argv: Sequence[str | Path]) -> list[str]:
    """Return a command line that runs `argv` in the namespace; otherwise it sees this machine."""
    return ["nsenter", f"--net={_FILE}", "--", *map(str, argv)]


def _seen(what: str) -> list[dict[str, Any]]:
    words = ["ip", "-netns", NAME, "-json", what, "show"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found: list[dict[str, Any]] = json.loads(text or "[]")
    return found


def _inside(*words: str) -> None:
    _ip("-netns", NAME, *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
