"""Other nodes for a job: changes of their number, accelerators, place and capacity. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.places import infra_name
from holdfast.domain.jobfile.resource_options import (
    LISTS,
    PLACES,
    ResourceOption,
    resource_options,
    uses_spot,
)
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.errors import ValidationIssue

_HARDWARE: Final = ("accelerators", "instance_type", "accelerator_args")
"""Options that name the hardware of a node, which other accelerators replace."""
_CONTAINER: Final = "docker:"
"""Prefix of images that do not belong to one cloud."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceChanges:
    """What a user changes about the nodes of a job; None leaves a value as it is."""

    nodes: int | Mapping[str, int] | None = None
    """A number, or `min` and `max` of an elastic job."""
    gpus: str | None = None
    """Accelerators of each node: `A100:8`."""
    infra: str | None = None
    """Where nodes are looked for: `aws/us-east-1`, `slurm/gpu`, `local`."""
    is_spot: bool | None = None

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return any(value is not None for value in (self.nodes, self.gpus, self.infra, self.is_spot))

    def flaws(self, spec: JobSpec, job_id: str) -> Iterator[ValidationIssue]:
        """What prevents these changes of a job, before its changed file is read."""
        if spec.holdfast.groups:
            if self:
                yield ValidationIssue(
                    "#/holdfast/groups",
                    "have num_nodes and resources of their own, which a resume cannot change; change them in the job file, and "
                    f"submit it with holdfast.checkpoint.from: {job_id}, which continues from the newest checkpoint of this job",
                )
            return
        options = resource_options(spec.resources)
        own = any(word in option.own_options for option in options for word in _HARDWARE)
        if self.infra is not None and self.gpus is None and own and _is_list(spec):
            yield ValidationIssue(
                "#/gpus",
                "is needed: the alternatives of the job file have accelerators of their own, and --infra replaces them",
            )
        if self.infra is None or not _changes_cloud(options, self.infra):
            return
        if self.gpus is None and any(option.options.get("instance_type") for option in options):
            yield ValidationIssue(
                "#/gpus",
                "is needed: instance_type of the job file belongs to another cloud; name the accelerators of a node",
            )
        images = (option.options.get("image_id") for option in options)
        if any(image and not str(image).startswith(_CONTAINER) for image in images):
            yield ValidationIssue(
                "#/infra",
                "is another cloud, and image_id of the job file belongs to the present one; submit a changed file, with "
                f"holdfast.checkpoint.from: {job_id}",
            )

    def resources(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """The resource options of a job with these changes."""
        after = dict(before)
        if self.infra is not None:
            after = {word: value for word, value in after.items() if word not in PLACES}
            after["infra"] = self.infra
        if self.gpus is not None:
            after = _without(after, _HARDWARE) | {"accelerators": self.gpus}
        if self.is_spot is not None:
            after = _without(after, ("use_spot",)) | {"use_spot": self.is_spot}
        return after


def differences(before: JobSpec, after: JobSpec) -> tuple[str, ...]:
    """What differs between the nodes of two job files, as phrases."""
    pairs = zip(describe(before).items(), describe(after).values(), strict=True)
    return tuple(f"{name} {new} instead of {old}" for (name, old), new in pairs if old != new)


def describe(spec: JobSpec) -> dict[str, str]:
    """The nodes of a job in words, by what they say."""
    low, high = spec.min_nodes, spec.num_nodes
    options = spec.options
    found: dict[str, str] = {
        "nodes": str(high) if low is None else f"{low}-{high}",
        "GPUs of each node": _joined(map(_hardware, options)),
        "place": _joined(infra_name(option.options.get("infra")) for option in options),
        "capacity": _joined(_capacity(spec, option) for option in options),
    }
    return found


def _hardware(option: ResourceOption) -> str:
    named = parse_accelerators(option.options.get("accelerators"))
    instance_type = option.options.get("instance_type") or "none"
    return " or ".join(f"{name}:{count:g}" for name, count in named) or str(instance_type)


def _capacity(spec: JobSpec, option: ResourceOption) -> str:
    match spec.engine:
        case Engine.SKYPILOT:
            return "spot" if uses_spot(option) else "on-demand"
        case Engine.SLURM:
            return "spot" if option.options.get("use_spot") is True else "own"
        case Engine.LOCAL:
            return "own"


def _joined(words: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _is_list(spec: JobSpec) -> bool:
    return any(spec.resources.get(word) for word in LISTS)


def _changes_cloud(options: tuple[ResourceOption, ...], infra: str) -> bool:
    head = infra_name(infra).split("/")[0]
    return any(infra_name(option.options.get("infra")).split("/")[0] != head for option in options)


def _without(resources: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """The options without some, also in alternatives; those that become the same are merged."""
    after = {word: value for word, value in resources.items() if word not in words}
    for name in LISTS:
        entries = [
            {word: value for word, value in entry.items() if word not in words}
            for entry in after.get(name) or ()
        ]
        unique = [entry for n, entry in enumerate(entries) if entry and entry not in entries[:n]]
        if name in after:
            after[name] = unique
        if not unique:
            after.pop(name, None)
    return after
