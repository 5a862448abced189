"""Resource options of a job: `resources`, or each entry of `any_of` or `ordered`.

An entry is merged over `resources`. Also the properties of the clouds that an option can name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CLOUDS: Final = [
    "aws",
    "azure",
    "gcp",
    "ibm",
    "lambda",
    "scp",
    "oci",
    "kubernetes",
    "runpod",
    "vast",
    "vsphere",
    "cudo",
    "fluidstack",
    "paperspace",
    "primeintellect",
    "do",
    "nebius",
    "ssh",
    "slurm",
    "hyperbolic",
    "seeweb",
    "shadeform",
    "yotta",
    "mithril",
    "verda",
]
"""The clouds of SkyPilot 0.14.1: `constants.ALL_CLOUDS`."""
CLOUDS_WITHOUT_SPOT: Final = frozenset(
    [
        "cudo",
        "do",
        "fluidstack",
        "hyperbolic",
        "lambda",
        "paperspace",
        "scp",
        "seeweb",
        "shadeform",
        "slurm",
        "vsphere",
        "yotta",
    ]
)
"""Clouds on which SkyPilot 0.14.1 never uses spot nodes."""
SPOT_OPT_IN_CLOUDS: Final = frozenset({"kubernetes", "ssh"})
"""Clouds with spot nodes only if the cluster's autoscaler is known to provide them."""
CLOUDS_WITHOUT_PRICES: Final = frozenset({"kubernetes", "ssh", "slurm"})
"""Own machines: their catalogs have no prices for a cost limit."""
LISTS: Final = ("any_of", "ordered")
SHARED_KEYS: Final = ("job_recovery", "autostop", "priority", "priority_class")
"""Keys that SkyPilot requires to be the same for all candidates."""


@dataclass(frozen=True, slots=True)
class ResourceOption:
    """One alternative node type of a job."""

    pointer: str
    """JSON pointer of the option in the job file."""
    options: Mapping[str, Any]
    """All options that apply: the entry's own merged over the common ones."""
    own_options: Mapping[str, Any]
    """Options of the entry itself; all options without a list."""

    @property
    def cloud(self) -> str | None:
        """The cloud in SkyPilot's spelling; None for any."""
        head = str(self.options.get("infra") or "").strip().strip("/").split("/")[0].strip().lower()
        return {"": None, "*": None, "k8s": "kubernetes"}.get(head, head)


PLACES: Final = ("infra", "cloud", "region", "zone", *LISTS)
"""Keys that say where nodes are looked for."""


def merge_group(resources: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the options of a node group over those of its job.

    Where the group says where its nodes are looked for, nothing of the job's places applies.
    """
    names_place = any(own.get(word) for word in PLACES)
    inherited = {w: v for w, v in resources.items() if not (names_place and w in PLACES)}
    return _merge_options(inherited, own)


def resource_options(
    resources: Mapping[str, Any], pointer: str = "#/resources"
) -> tuple[ResourceOption, ...]:
    """The options of a job in the order of the file; `pointer` is that of `resources` there."""
    for word in LISTS:
        if entries := resources.get(word):
            common = {key: value for key, value in resources.items() if key not in LISTS}
            return tuple(
                ResourceOption(f"{pointer}/{word}/{n}", _merge_options(common, entry), entry)
                for n, entry in enumerate(entries)
            )
    return (ResourceOption(pointer, resources, resources),)


def uses_spot(candidate: ResourceOption) -> bool:
    """Whether the option uses spot nodes: as written, or where the cloud is known to have them."""
    written = candidate.options.get("use_spot")
    if candidate.cloud in CLOUDS_WITHOUT_SPOT:
        return False
    return candidate.cloud not in SPOT_OPT_IN_CLOUDS if written is None else bool(written)


def _merge_options(common: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Merge an entry over the common options; labels are combined, as in SkyPilot."""
    whole = {**common, **{word: value for word, value in entry.items() if value is not None}}
    if common.get("labels") and entry.get("labels"):
        whole["labels"] = {**common["labels"], **entry["labels"]}
    return whole


def unknown_cloud(cloud: str) -> str | None:
    """Why a cloud name is invalid; None if SkyPilot knows it."""
    if cloud in CLOUDS:
        return None
    if near := difflib.get_close_matches(cloud, [*CLOUDS, "local"], n=1, cutoff=0.6):
        return f"{cloud!r} is an unknown infrastructure; did you mean {near[0]!r}?"
    return f"{cloud!r} is an unknown infrastructure; known are local, {', '.join(CLOUDS)}"
