"""The settings that Holdfast requires in a SkyPilot server's configuration.

All others belong to the user. Pure. SkyPilot and its jobs controllers reread the file for every queued request. The
server process itself reads it once: at startup it sets up consolidation and keeps the validation policy of that moment.
Measured with 0.14.1: after a change of `admin_policy`, `/jobs/launch` asks the new policy and `/validate` the old one.
Each process imports a policy class once, so a changed module also takes effect after a restart.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import yaml

from holdfast.errors import BadRequest

GATE: Final = "holdfast_gate.Gate"
"""The policy if our module is in SkyPilot's environment."""
POLICY_PATH: Final = "/v1/skypilot/policy/"
"""Path that distinguishes the address of our admission gate from other policies."""
_READ_AT_START: Final = ("admin_policy", "db", "rbac")


@dataclass(frozen=True, slots=True)
class Policy:
    """The admission policy that SkyPilot asks before a launch."""

    location: str
    """Value of `admin_policy`: the class of our module, or the address of our gate."""
    edition: str = ""
    """Digest of the module, which SkyPilot reads at startup; empty for an address."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that satisfies Holdfast."""

    text: str
    """Contents of the file."""
    notes: tuple[str, ...]
    """Corrections of the user's settings, as sentences."""
    at_start: str
    """Digest of the settings that take effect only at startup."""


def merged_configuration(text: str, ours: Policy) -> Configuration:
    """Merge the settings Holdfast requires into the configuration `text`, which may be empty.

    Raises:
        BadRequest: the configuration cannot be parsed.
    """
    values = _read(text)
    before = _read(text)
    notes = []
    policy = values.get("admin_policy")
    if policy and policy != GATE and POLICY_PATH not in str(policy):
        notes.append(
            f"admin_policy was {policy}; SkyPilot supports only one policy, which is now this service"
        )
    values["admin_policy"] = ours.location
    controller = _section(_section(values, "jobs"), "controller")
    if controller.get("consolidation_mode") is False:
        notes.append(
            "jobs.controller.consolidation_mode was false; the jobs controllers now run on the server's machine, "
            "because a rented controller costs extra"
        )
    controller["consolidation_mode"] = True
    unchanged = values == before
    return Configuration(
        text if unchanged else yaml.safe_dump(values, sort_keys=False),
        tuple(notes),
        _digest(values, ours.edition),
    )


def required_lines() -> str:
    """Return the lines that a server's configuration needs, for users who write it themselves."""
    return merged_configuration("", Policy(GATE)).text


def _read(text: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise BadRequest(f"SkyPilot's config.yaml is not YAML: {error}; correct it") from error
    if not isinstance(values, dict):
        raise BadRequest("SkyPilot's config.yaml contains no keys; correct or delete it")
    return values


def _section(parent: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the mapping under a key, created if missing."""
    section = parent.setdefault(name, {})
    if section is None:
        section = parent[name] = {}
    if not isinstance(section, dict):
        raise BadRequest(f"SkyPilot's config.yaml: {name} must contain keys; correct it")
    return section


def _digest(values: dict[str, Any], edition: str) -> str:
    read = {key: values.get(key) for key in _READ_AT_START}
    read["gate"] = edition
    read["controller"] = values["jobs"]["controller"]
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()[:16]
