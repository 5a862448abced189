"""What the configuration of a SkyPilot server has to say for Holdfast; everything else in it is the person's own.

Pure. SkyPilot reads its file anew for every request that it queues, and its jobs controllers do so, too. The server
process itself reads it once: it sets up consolidation then, and validates with the policy of that moment. Measured with
0.14.1: after a change of `admin_policy`, `/jobs/launch` asks the new one and `/validate` the old one. A policy that is a
class is imported once by each process: a changed module, too, is in force after a start.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import yaml

from holdfast.errors import BadRequest

GATE: Final = "holdfast_gate.Gate"
"""Our policy where its module is in SkyPilot's environment."""
POLICY_PATH: Final = "/v1/skypilot/policy/"
"""How the address of our admission gate is told from the policy of somebody else."""
_READ_AT_START: Final = ("admin_policy", "db", "rbac")


@dataclass(frozen=True, slots=True)
class Policy:
    """Whom SkyPilot asks before it launches."""

    location: str
    """What `admin_policy` says: the class of our module, or the address of our gate."""
    edition: str = ""
    """A digest of the module, which SkyPilot reads at its start; empty for an address."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration as it has to be."""

    text: str
    """The file."""
    notes: tuple[str, ...]
    """What was put right in what the person had written, as sentences."""
    at_start: str
    """A digest of what only a start of the server makes true."""


def configured(text: str, ours: Policy) -> Configuration:
    """The configuration in `text`, which may be empty, with what Holdfast needs.

    Raises:
        BadRequest: it cannot be understood.
    """
    told = _read(text)
    before = _read(text)
    notes = []
    policy = told.get("admin_policy")
    if policy and policy != GATE and POLICY_PATH not in str(policy):
        notes.append(
            f"admin_policy was {policy}; SkyPilot knows one policy only, and asks this service now"
        )
    told["admin_policy"] = ours.location
    controller = _section(_section(told, "jobs"), "controller")
    if controller.get("consolidation_mode") is False:
        notes.append(
            "jobs.controller.consolidation_mode was false; jobs are watched by the server's machine now, "
            "as a rented controller would be a second bill"
        )
    controller["consolidation_mode"] = True
    unchanged = told == before
    return Configuration(
        text if unchanged else yaml.safe_dump(told, sort_keys=False),
        tuple(notes),
        _digest(told, ours.edition),
    )


def needed() -> str:
    """The lines that a server's configuration needs, for whoever writes it by hand."""
    return configured("", Policy(GATE)).text


def _read(text: str) -> dict[str, Any]:
    try:
        told = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise BadRequest(f"SkyPilot's config.yaml is not YAML: {error}; put it right") from error
    if not isinstance(told, dict):
        raise BadRequest("SkyPilot's config.yaml holds no keys; put it right, or remove it")
    return told


def _section(parent: dict[str, Any], name: str) -> dict[str, Any]:
    """The mapping under a key, made if it is not there."""
    section = parent.setdefault(name, {})
    if section is None:
        section = parent[name] = {}
    if not isinstance(section, dict):
        raise BadRequest(f"SkyPilot's config.yaml: {name} has to hold keys; put it right")
    return section


def _digest(told: dict[str, Any], edition: str) -> str:
    read = {key: told.get(key) for key in _READ_AT_START}
    read["gate"] = edition
    read["controller"] = told["jobs"]["controller"]
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()[:16]
