"""Places as launchers report them, and the nodes that are wanted there. Pure.

A reported place is named as `infra` of a job file would name it: `aws/us-east-1/us-east-1a`, `slurm/cluster/partition`, `local/local-a`.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import ResourceOption
from holdfast.domain.jobfile.spec import Engine

_UNKNOWN: Final = frozenset({"", "unknown"})
_ZONE_ID: Final = re.compile(r"[a-z]{3}\d-az\d")
_ZONE: Final = re.compile(r"(?P<aws>[a-z]{2}(?:-[a-z]+)+-\d)[a-z]|(?P<gcp>[a-z]+-[a-z]+\d)-[a-z]")


def hardware_of(option: ResourceOption) -> str:
    """Accelerators of a node, or else its instance type, in lower case; empty without."""
    names = sorted(
        f"{name}:{count:g}"
        for name, count in parse_accelerators(option.options.get("accelerators"))
    )
    return (",".join(names) or str(option.options.get("instance_type") or "")).lower()


def matches_hardware(wanted: str, recorded: str) -> bool:
    """Whether what is recorded of nodes holds for wanted ones; a recording may name less."""
    return not recorded or wanted == recorded or wanted.startswith(f"{recorded}:")


def reported_place(engine: Engine, zone: str, cloud: str = "", *, simulated: bool = False) -> str:
    """The place of a zone that a launcher reported; empty if it is unknown."""
    zone, cloud = zone.strip().strip("/").lower(), cloud.strip().lower()
    if zone in _UNKNOWN:
        return ""
    is_local = engine is Engine.LOCAL or zone.startswith(Engine.LOCAL.value)
    own = (
        Engine.SLURM if engine is Engine.SLURM else Engine.LOCAL if is_local or simulated else None
    )
    if own:
        return zone if zone.startswith(f"{own}/") else f"{own}/{zone}"
    if "/" in zone:
        return zone
    return zone_place(zone, cloud) or f"{cloud}/{zone}".strip("/")


def zone_place(zone: str, cloud: str = "") -> str:
    """The place of a zone of AWS or Google Cloud by its name alone; empty if it is none."""
    found = _ZONE.match(zone)
    if not found or found.end() != len(zone) or (cloud and found.lastgroup != cloud):
        return ""
    return f"{found.lastgroup}/{found[str(found.lastgroup)]}/{zone}"


def named_zone(name: str) -> tuple[str, str]:
    """The place of the zone with which the name of a trace begins, and the nodes that follow.

    `us-west-2a_v100_8` is of eight V100. Both are empty without a zone.
    """
    found = _ZONE.match(name)
    if not found or name[found.end() : found.end() + 1] not in {"", "_"}:
        return "", ""
    kind, _, count = name[found.end() + 1 :].rpartition("_")
    hardware = f"{kind}:{count}" if kind and count.isdecimal() else name[found.end() + 1 :]
    return zone_place(found[0]), hardware.replace("_", "-")


def is_zone_id(name: str) -> bool:
    """Whether a name is the id of a zone of AWS, such as use1-az1."""
    return _ZONE_ID.match(name) is not None


def zone_region(name: str) -> str | None:
    """The region of the zone with which a name begins; None if it begins with none."""
    found = _ZONE.match(name)
    return found[str(found.lastgroup)] if found else None
