"""The places of a job: where its file allows nodes, and what a launch asks for there.

A place is a resource option without `use_spot`, named by its `infra`: `aws/us-east-1/us-east-1a`, `gcp`,
`slurm/cluster/partition`, or `any` without one. The places of local jobs are zones of a market, which their launcher knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.domain.events.planning import CapacityType, LaunchPlacement
from holdfast.domain.jobfile.resource_options import (
    LISTS,
    SHARED_KEYS,
    ResourceOption,
    resource_options,
    uses_spot,
)
from holdfast.errors import BadJobFile, ValidationIssue

ANY: Final = "any"
"""Name of the place of an option without `infra`."""
_WILDCARD: Final = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceOption:
    """A place of a job, with the nodes that the job asks for there."""

    name: str
    """Unique in the job: `#2`, `#3` and so on follow the name if earlier options have the same `infra`."""
    option: ResourceOption
    """The first option of the file for this place."""
    capacities: frozenset[CapacityType]
    """How nodes may be bought there."""

    @property
    def infra(self) -> str:
        """Name without a number."""
        return self.name.partition("#")[0]

    @property
    def region(self) -> str:
        """Cloud and region; the cloud alone if the job asks for no region."""
        return "/".join(self.infra.split("/")[:2])

    @property
    def sells_spot(self) -> bool:
        """Whether spot nodes may be bought there."""
        return CapacityType.SPOT in self.capacities


def job_places(resources: Mapping[str, Any], *, is_slurm: bool) -> tuple[PlaceOption, ...]:
    """The places of a job in the order of its file.

    `is_slurm`: the job is for the Slurm launcher, where a partition has one kind of nodes. Elsewhere every place may have
    on-demand nodes.
    """
    found = dict[str, PlaceOption]()
    for option in resource_options(resources):
        name = base = infra_name(option.options.get("infra"))
        number, capacities = 1, _capacities(option, is_slurm=is_slurm)
        while (known := found.get(name)) and _properties(known.option) != _properties(option):
            number += 1
            name = f"{base}#{number}"
        found[name] = (
            replace(known, capacities=known.capacities | capacities)
            if known
            else PlaceOption(name=name, option=option, capacities=capacities)
        )
    return tuple(found.values())


def list_flaws(resources: Mapping[str, Any]) -> Iterator[ValidationIssue]:
    """Entries of a local job that name zones of its market, which only a launch does."""
    if infra_name(resources.get("infra")) != "local":
        return
    for option in resource_options(resources):
        infra = option.own_options.get("infra")
        if infra_name(infra).startswith("local/"):
            yield ValidationIssue(
                f"{option.pointer}/infra",
                f"is {infra}, and the zones of local nodes are those of the market; write infra: local under "
                "resources, and remove this entry",
            )


def planned_place_flaws(
    resources: Mapping[str, Any], *, is_slurm: bool, on_demand: bool
) -> Iterator[ValidationIssue]:
    """What prevents a plan from using the places of a job that is not local.

    `on_demand`: the plan may use on-demand nodes.
    """
    for option in resource_options(resources):
        if option.cloud == "slurm" and not is_slurm:
            yield ValidationIssue(
                f"{option.pointer}/infra",
                f"is {option.options['infra']} in a list for SkyPilot, which knows no spot nodes on Slurm; for a plan of "
                "partitions write infra: slurm under resources as well, or remove this entry",
            )
            return
    places = job_places(resources, is_slurm=is_slurm)
    if not any(place.sells_spot for place in places):
        way_out = (
            "write use_spot: true in the entry of a partition whose jobs can be preempted"
            if is_slurm
            else "remove use_spot: false, or name a cloud with spot nodes"
        )
        yield ValidationIssue(
            "#/resources",
            f"names no place with spot nodes, so there is nothing to plan; {way_out}, or remove holdfast.plan",
        )
    elif on_demand and all(place.capacities == {CapacityType.SPOT} for place in places):
        yield ValidationIssue(
            "#/resources",
            "names only partitions whose jobs can be preempted, so no plan can keep a deadline; add another one, or write "
            "holdfast.plan.on_demand: false",
        )


def infra_name(infra: object) -> str:
    """The name of a place by its `infra`."""
    parts = [part.strip() for part in str(infra or "").strip().strip("/").lower().split("/")]
    while parts and parts[-1] in {"", _WILDCARD}:
        parts.pop()
    if parts[:1] == ["k8s"]:
        parts[0] = "kubernetes"
    return "/".join(parts) or ANY


def place_of(places: Iterable[PlaceOption], cloud: str, zone: str) -> PlaceOption | None:
    """The place to which an observed zone belongs; None if the job has no such place.

    `zone` is a path such as `us-east-1/us-east-1a`, which may begin with the cloud. Of several places it is the most specific,
    then the first. A path without a zone, as SkyPilot reports denials, belongs to the only place below it.
    """
    seen = _observed_path(cloud, zone)
    candidates = [(place, _path(place.infra)) for place in places]
    around = [(place, path) for place, path in candidates if _begins_with(seen, path)]
    if around:
        return max(around, key=lambda each: len(each[1]))[0]
    below = [place for place, path in candidates if seen and path[: len(seen)] == seen]
    return below[0] if len(below) == 1 else None


def is_within(name: str, around: str) -> bool:
    """Whether a place is another one, or part of it, whatever nodes are asked for; `*` is any."""
    return _begins_with(_path(name.lower()), _path(around.lower()))


def placed_resources(
    resources: Mapping[str, Any], placement: LaunchPlacement, *, is_slurm: bool
) -> dict[str, Any]:
    """The resources of one launch: the places of its placement, all of one capacity type.

    On Slurm they are a list even of one place: whether `use_spot` of a task is written or a default is not known there.

    Raises:
        BadJobFile: a place is not one of the job's, or has no nodes of this type.
    """
    known = {place.name: place for place in job_places(resources, is_slurm=is_slurm)}
    flaws = [_placement_flaw(name, known, placement.capacity) for name in placement.places]
    if not placement.places:
        flaws.append("has no place for a launch; submit the job again")
    if found := tuple(ValidationIssue("#/resources", flaw) for flaw in flaws if flaw):
        raise BadJobFile(found)
    shared = _shared_options(resources) | {"use_spot": placement.capacity is CapacityType.SPOT}
    options = [known[name].option for name in placement.places]
    if len(options) == 1 and not is_slurm:
        return _without_lists(options[0].options) | shared
    entries = [{**option.own_options, "use_spot": shared["use_spot"]} for option in options]
    return _without_lists(resources) | shared | {"ordered": entries}


def zone_resources(resources: Mapping[str, Any], placement: LaunchPlacement) -> dict[str, Any]:
    """The resources of one launch of a local job.

    Its places are zones of a market: `local/local-a`.
    """
    is_spot = {"use_spot": placement.capacity is CapacityType.SPOT}
    entries = [{"infra": place} | is_spot for place in placement.places]
    return _without_lists(resources) | is_spot | {"ordered": entries}


def with_zones_last(
    resources: Mapping[str, Any], zones: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """The resources of a launch that tries its entries with these zones last.

    `zones` are pairs of a cloud and a zone. The other entries are tried in the order of the file. Entries of a whole cloud do not change their place, and neither does
    the only one.
    """
    avoided = [_observed_path(cloud, zone) for cloud, zone in zones]
    is_last = list[bool]()
    entries = next((resources[word] for word in LISTS if resources.get(word)), ())
    for entry in entries:
        path = _path(infra_name(entry.get("infra") or resources.get("infra")))
        is_last.append(len(path) > 1 and any(_begins_with(zone, path) for zone in avoided))
    if not any(is_last) or all(is_last):
        return dict(resources)
    order = sorted(range(len(is_last)), key=is_last.__getitem__)
    return _without_lists(resources) | {"ordered": [entries[number] for number in order]}


def _capacities(option: ResourceOption, *, is_slurm: bool) -> frozenset[CapacityType]:
    if is_slurm:
        written = option.options.get("use_spot") is True
        return frozenset({CapacityType.SPOT if written else CapacityType.ON_DEMAND})
    spot = {CapacityType.SPOT} if uses_spot(option) else set[CapacityType]()
    return frozenset({CapacityType.ON_DEMAND, *spot})


def _properties(option: ResourceOption) -> dict[str, Any]:
    """What the nodes of an option are, apart from where they are and how they are bought."""
    return {
        word: value
        for word, value in option.options.items()
        if value is not None and word not in ("infra", "use_spot", *LISTS, *SHARED_KEYS)
    }


def _shared_options(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Options that hold for all entries, also if only an entry outside the placement has them."""
    found = [option.options for option in resource_options(resources)]
    values = {
        word: [one[word] for one in found if one.get(word) is not None] for word in SHARED_KEYS
    }
    return {word: given[0] for word, given in values.items() if given}


def _without_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in options.items() if word not in LISTS}


def _placement_flaw(
    name: str, known: Mapping[str, PlaceOption], capacity: CapacityType
) -> str | None:
    if (place := known.get(name)) is None:
        return f"has no place {name!r} any more, which this launch asks for; submit the job again"
    if capacity not in place.capacities:
        kind = capacity.value.replace("_", "-")
        return f"has no {kind} nodes in {name}, which this launch asks for; submit the job again"
    return None


def _path(name: str) -> tuple[str, ...]:
    base = name.partition("#")[0]
    return () if base == ANY else tuple(base.split("/"))


def _observed_path(cloud: str, zone: str) -> tuple[str, ...]:
    parts = [part.strip().lower() for part in zone.split("/") if part.strip()]
    head = cloud.strip().lower()
    return tuple(parts if not head or parts[:1] == [head] else [head, *parts])


def _begins_with(path: tuple[str, ...], start: tuple[str, ...]) -> bool:
    """Whether a path has all components of another; `*` is any."""
    return len(path) >= len(start) and all(
        _WILDCARD in pair or pair[0] == pair[1] for pair in zip(path, start, strict=False)
    )
