"""The disk of a rented node, as its job file asks for it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from holdfast.domain.jobfile.spec import JobPart

DEFAULT_SIZE_GIB: Final = 256
"""What SkyPilot 0.14.1 asks for without `disk_size`."""
DEFAULT_TIER: Final = "medium"
"""What it asks for without `disk_tier`."""
_SIZE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgtp]?)i?b?\+?", re.IGNORECASE)
_POWERS: Final = {"k": -2, "m": -1, "": 0, "g": 0, "t": 1, "p": 2}


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """Size and kind of the disk of a node."""

    size_gib: int = DEFAULT_SIZE_GIB
    tier: str = DEFAULT_TIER


def disk_of(part: JobPart, cloud: str) -> DiskSpec:
    """The disk of a node in a cloud: that of the first alternative for this cloud, or of the first one."""
    options = part.options
    fits = [option for option in options if option.cloud in {None, cloud.lower()}]
    chosen = (fits or options)[0].options
    tier = str(chosen.get("disk_tier") or DEFAULT_TIER).lower()
    # SkyPilot gives the best disk that a cloud has, which differs; high is what most nodes get.
    return DiskSpec(_size_gib(chosen.get("disk_size")), "high" if tier == "best" else tier)


def _size_gib(value: Any) -> int:
    """A size as SkyPilot writes it, such as 256 or 1TB, in whole GiB; the default if it is none."""
    found = _SIZE.fullmatch(str(value).strip()) if value else None
    if found is None:
        return DEFAULT_SIZE_GIB
    size = float(found["number"]) * 1024.0 ** _POWERS[found["unit"].lower()]
    return max(1, round(size))
