"""Names of places: of the options of a job file, and of what launchers report. Pure.

A place is written as `infra` in a job file: `aws/us-east-1/us-east-1a`, `gcp/us-central1`, `gcp`, `slurm/cluster/partition`, `local/local-a`. A place
includes all places whose names continue its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import ResourceOption
from holdfast.domain.jobfile.spec import Engine, JobSpec

ANYWHERE: Final = "any"
"""The place of an option without `infra`."""
_UNKNOWN: Final = frozenset({"", "unknown"})
_ZONE: Final = re.compile(r"(?P<aws>[a-z]{2}(?:-[a-z]+)+-\d)[a-z]|(?P<gcp>[a-z]+-[a-z]+\d)-[a-z]")
_NUMBER: Final = re.compile(r"#\d+$")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionPlace:
    """The place of an option of a job file."""

    name: str
    """Unique within the job."""
    option: ResourceOption
    """The first option with this place and these properties."""
    hardware: str
    """As `hardware_of`."""


def option_places(spec: JobSpec) -> tuple[OptionPlace, ...]:
    """The places of a job's options in the order of the file.

    Options that differ in `use_spot` alone share a place; of those that differ in another property at one
    place, the second is named `place#2`.
    """
    found, known = list[OptionPlace](), set[str]()
    for option in spec.options:
        name = place_name(option)
        own = {word: value for word, value in option.options.items() if word != "use_spot"}
        text = json.dumps([name, {**own, "infra": None}], sort_keys=True, default=str)
        if text in known:
            continue
        known.add(text)
        same = sum(_base(each.name) == name for each in found)
        found.append(
            OptionPlace(
                name=f"{name}#{same + 1}" if same else name,
                option=option,
                hardware=hardware_of(option),
            )
        )
    return tuple(found)


def place_name(option: ResourceOption) -> str:
    """The place of one option, without a number."""
    parts = str(option.options.get("infra") or "").lower().split("/")
    named = [part.strip() for part in parts]
    while named and named[-1] in {"", "*"}:
        named.pop()
    return "/".join(named) or ANYWHERE


def hardware_of(option: ResourceOption) -> str:
    """The accelerators of a node, or else its instance type, in lower case; empty without either."""
    names = sorted(
        f"{name}:{count:g}"
        for name, count in parse_accelerators(option.options.get("accelerators"))
    )
    return (",".join(names) or str(option.options.get("instance_type") or "")).lower()


def includes(place: str, other: str) -> bool:
    """Whether a place is another one, or includes it."""
    base = _base(place)
    return base == ANYWHERE or other == base or other.startswith(f"{base}/")


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


def zone_region(name: str) -> str | None:
    """The region of the zone with which a name begins; None if it begins with none."""
    found = _ZONE.match(name)
    return found[str(found.lastgroup)] if found else None


def place_region(place: str) -> str:
    """The region of a place: its first two components, such as `aws/us-east-1`."""
    return "/".join(_base(place).split("/")[:2])


def _base(place: str) -> str:
    return _NUMBER.sub("", place)
