"""What nodes a job would take: `resources` itself, or each entry of `any_of` or `ordered` laid over it.

Also what is known about the clouds that an entry can name.
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
SPOTLESS: Final = frozenset(
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
"""Clouds on which SkyPilot 0.14.1 never takes spot nodes."""
SELDOM_SPOT: Final = frozenset({"kubernetes", "ssh"})
"""Where there are spot nodes only if the cluster's autoscaler is known to sell them."""
PRICELESS: Final = frozenset({"kubernetes", "ssh", "slurm"})
"""Machines of one's own: their catalogs have no prices that a limit could be held against."""
LISTS: Final = ("any_of", "ordered")


@dataclass(frozen=True, slots=True)
class ResourceOption:
    """One kind of node that would do."""

    pointer: str
    """Where it is written."""
    words: Mapping[str, Any]
    """Everything that holds for it: its own words over the common ones."""
    own: Mapping[str, Any]
    """What its entry itself says; all words where there is no list."""

    @property
    def cloud(self) -> str | None:
        """Its cloud in SkyPilot's spelling; None: any."""
        head = str(self.words.get("infra") or "").strip().strip("/").split("/")[0].strip().lower()
        return {"": None, "*": None, "k8s": "kubernetes"}.get(head, head)


def candidates(resources: Mapping[str, Any]) -> tuple[ResourceOption, ...]:
    """The candidates in the order in which they are written."""
    for word in LISTS:
        if entries := resources.get(word):
            common = {key: value for key, value in resources.items() if key not in LISTS}
            return tuple(
                ResourceOption(f"#/resources/{word}/{n}", _over(common, entry), entry)
                for n, entry in enumerate(entries)
            )
    return (ResourceOption("#/resources", resources, resources),)


def takes_spot(candidate: ResourceOption) -> bool:
    """What the file says, or spot wherever the cloud is known to have it."""
    said = candidate.words.get("use_spot")
    if candidate.cloud in SPOTLESS:
        return False
    return candidate.cloud not in SELDOM_SPOT if said is None else bool(said)


def _over(common: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry's words over the common ones; labels join, as they do in SkyPilot."""
    whole = {**common, **{word: value for word, value in entry.items() if value is not None}}
    if common.get("labels") and entry.get("labels"):
        whole["labels"] = {**common["labels"], **entry["labels"]}
    return whole


def unknown_cloud(cloud: str) -> str | None:
    """What is wrong with a cloud that SkyPilot does not know; None when it does."""
    if cloud in CLOUDS:
        return None
    if near := difflib.get_close_matches(cloud, [*CLOUDS, "local"], n=1, cutoff=0.6):
        return f"{cloud!r} is no place that is known; did you mean {near[0]!r}?"
    return f"{cloud!r} is no place that is known; known are local, {', '.join(CLOUDS)}"
