"""Node groups of a job file: what has to agree between them and with the file. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_worker.protocol.policies import RecoveryMode

from holdfast.domain.jobfile.spec import (
    MAX_GROUPS,
    MAX_NODES,
    MIN_GROUPS,
    Engine,
    JobFile,
    JobPart,
    JobSpec,
    NodeRange,
    engine_of,
    launcher_name,
)
from holdfast.errors import ValidationIssue

_GROUPS = "#/holdfast/groups"


def group_flaws(file: JobFile) -> Iterator[ValidationIssue]:
    """Yield what is wrong with the number of groups, their names and their numbers of nodes."""
    groups = file.holdfast.groups
    if not groups:
        return
    if len(groups) < MIN_GROUPS:
        yield ValidationIssue(
            _GROUPS,
            f"has one group; write at least {MIN_GROUPS}, or remove groups and write its num_nodes and resources as those "
            "of the job",
        )
        return
    if len(groups) > MAX_GROUPS:
        yield ValidationIssue(
            _GROUPS, f"has {len(groups)} groups; write at most {MAX_GROUPS}, with more nodes each"
        )
    seen = dict[str, int]()
    for number, group in enumerate(groups):
        if (first := seen.setdefault(group.name, number)) != number:
            yield ValidationIssue(
                f"{_GROUPS}/{number}/name",
                f"is {group.name!r}, which is the name of group {first} as well; write another name",
            )
    total = sum(group.num_nodes for group in groups)
    if total > MAX_NODES:
        yield ValidationIssue(
            _GROUPS, f"has {total} nodes together; a job has at most {MAX_NODES}, so write fewer"
        )
    asked = file.num_nodes.max if isinstance(file.num_nodes, NodeRange) else file.num_nodes
    if "num_nodes" in file.model_fields_set and asked != total:
        what = f"has a max of {asked}" if isinstance(file.num_nodes, NodeRange) else f"is {asked}"
        yield ValidationIssue(
            "#/num_nodes",
            f"{what}, and the groups have {total} nodes together; write {total}, or change num_nodes of a group",
        )


def total_nodes(file: JobFile) -> int | NodeRange:
    """The nodes of a job without `group_flaws`: as written, or those of all groups."""
    if file.holdfast.groups and "num_nodes" not in file.model_fields_set:
        return sum(group.num_nodes for group in file.holdfast.groups)
    return file.num_nodes


def launcher_flaws(spec: JobSpec) -> Iterator[ValidationIssue]:
    """Yield what prevents SkyPilot from running each group of a job as a managed job."""
    if spec.engine is not Engine.SKYPILOT:
        yield ValidationIssue(
            _GROUPS,
            f"needs the SkyPilot launcher, and resources.infra selects the {launcher_name(spec.engine)} launcher; "
            "write a cloud in resources.infra, or remove groups",
        )
        return
    for part in spec.parts:
        if engine_of(part.resources) is not Engine.SKYPILOT:
            infra = part.resources["infra"]
            yield ValidationIssue(
                f"{part.pointer}/infra",
                f"is {infra}, and groups run on clouds only; write a cloud, such as aws/us-east-1",
            )
    if spec.holdfast.recovery is RecoveryMode.RESTART:
        yield ValidationIssue(
            "#/holdfast/recovery",
            "is restart, with which all ranks end if a group is lost; write in_process, remove recovery, or remove groups",
        )


def located(part: JobPart, issue: ValidationIssue, own: frozenset[str]) -> ValidationIssue:
    """A flaw of a part's merged resources, at the key of the file that it comes from.

    `own` are the keys that the group has itself.
    """
    rest = issue.pointer.removeprefix("#/resources")
    if rest == issue.pointer or (rest and rest.split("/")[1] not in own):
        return issue
    return ValidationIssue(f"{part.pointer}{rest}", issue.message)
