"""Spot safety: whether a job on spot nodes saves its progress before preemptions. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast_worker.protocol.policies import Cadence, CadenceUnit

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.checkpoint_spec import Checkpoint
from holdfast.domain.jobfile.resource_options import ResourceOption, resource_options, uses_spot
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.errors import BadJobFile, ValidationIssue

MIN_LOSSES: Final = 5
"""Own losses needed to replace the prior. A lower value trusts accidents; a higher value keeps the prior longer."""
DEFAULT_LIFETIME_S: Final = 2 * 3600
"""Assumed lifetime of nodes without data; workers assume the same."""
PRIORS_S: Final[Mapping[tuple[str, bool], int]] = {
    # V100 nodes with one accelerator in six AWS zones, thirty days from 2023-02-15: 2,518 hours, 877 ends.
    ("aws", False): 10_300,
    # V100 nodes with eight accelerators in two AWS zones, four weeks from 2022-10-26: 614 hours, 669 ends.
    ("aws", True): 3_300,
    # A100 in five GCP zones, 770 probes 150 s apart: 137 hours, 18 ends.
    ("gcp", False): 27_000,
    ("gcp", True): 27_000,
}
"""Mean availability of spot nodes in seconds, by cloud and by whether they have at least eight accelerators.

From the availability traces of "Can't Be Late" (NSDI'24) and SkyServe (EuroSys'25). These are launch probes: a node that is
held lasts as long or longer, so the values are low. A job refused by them would lose most of its work in such weeks.
"""
_MANY_ACCELERATORS: Final = 8


@dataclass(frozen=True, slots=True)
class HistoricalLifetimes:
    """Node time and losses of earlier jobs on the same node type."""

    node_s: float = 0.0
    """Total seconds with nodes."""
    losses: int = 0
    """Number of capacity losses."""


def spot_kind(spec: JobSpec) -> str:
    """The `node_kind` whose losses matter: that of the first node group on spot nodes."""
    parts = [part for part in spec.parts if any(map(uses_spot, part.options))]
    return node_kind((parts or spec.parts)[0].resources)


def node_kind(resources: Mapping[str, Any]) -> str:
    """Key of the node type that a job tries first: cloud and accelerators."""
    first = resource_options(resources)[0]
    name, count = _accelerators(first)
    return f"{first.cloud or 'any'}/{name.lower() or 'none'}:{count}"


def expected_lifetime_s(candidate: ResourceOption, past: HistoricalLifetimes) -> tuple[float, str]:
    """Expected node lifetime in seconds, and its source."""
    if past.losses >= MIN_LOSSES:
        return past.node_s / past.losses, f"according to {past.losses} losses of such nodes here"
    prior_s = PRIORS_S.get(
        (candidate.cloud or "", _accelerators(candidate)[1] >= _MANY_ACCELERATORS)
    )
    if prior_s is None:
        return DEFAULT_LIFETIME_S, "the default without data"
    return prior_s, f"according to traces of {candidate.cloud}"


def check_spot_safety(spec: JobSpec, past: HistoricalLifetimes, *, force: bool) -> tuple[str, ...]:
    """Notes on the risks of a job on spot nodes, including the risks that `force` accepts.

    Raises:
        BadJobFile: The job would lose its work, and `force` is not set.
    """
    issues = spot_flaws(spec, past)
    if issues and not force:
        raise BadJobFile(issues)
    accepted = tuple(
        f"refused without --force: {issue.pointer} {issue.message}" for issue in issues
    )
    return *accepted, *safety_notes(spec, past)


def spot_flaws(spec: JobSpec, past: HistoricalLifetimes) -> tuple[ValidationIssue, ...]:
    """Reasons why a job would lose its work on spot nodes; empty if it would not or uses none."""
    spot = _first_spot_option(spec)
    checkpoint = spec.holdfast.checkpoint
    if spot is None:
        return ()
    if checkpoint is None:
        message = (
            "is missing, and spot nodes are preempted: the job would restart at step 0 each time; write "
            "checkpoint: {store: s3://bucket/prefix}, or use_spot: false under resources, or accept it with --force"
        )
        return (ValidationIssue("#/holdfast/checkpoint", message),)
    return tuple(_interval_flaws(checkpoint, spot, past))


def safety_notes(spec: JobSpec, past: HistoricalLifetimes) -> Iterator[str]:
    """Risks that cannot be computed before the run: intervals in steps of unknown duration."""
    spot, checkpoint = _first_spot_option(spec), spec.holdfast.checkpoint
    if spot is None or checkpoint is None:
        return
    if Cadence.parse(checkpoint.every).unit is CadenceUnit.STEPS:
        lasts_s, known = expected_lifetime_s(spot, past)
        yield (
            f"holdfast.checkpoint.every: the duration of {checkpoint.every} is unknown before the run; such nodes are "
            f"expected to last {_span(lasts_s)}, {known}; auto measures the duration"
        )


def _interval_flaws(
    checkpoint: Checkpoint, spot: ResourceOption, past: HistoricalLifetimes
) -> Iterator[ValidationIssue]:
    cadence = Cadence.parse(checkpoint.every)
    lasts_s, known = expected_lifetime_s(spot, past)
    if cadence.unit is CadenceUnit.SECONDS and cadence.amount > lasts_s:
        message = (
            f"is {checkpoint.every}, but such spot nodes are expected to last {_span(lasts_s)}, {known}: most of them would "
            "be preempted before the first checkpoint; write auto, or a shorter time, or accept it with --force"
        )
        yield ValidationIssue("#/holdfast/checkpoint/every", message)


def accelerator_count(spec: JobSpec) -> int:
    """Accelerators of all nodes of a job in the first option of each part; 0 without any."""
    found = ((part.num_nodes, *_accelerators(part.options[0])) for part in spec.parts)
    return sum(nodes * count for nodes, name, count in found if name)


def option_accelerators(option: ResourceOption) -> int:
    """Accelerators of one node of this option, with the most of its alternatives; 0 without any."""
    name, first = _accelerators(option)
    others = parse_accelerators(option.options.get("accelerators"))
    return max((first * bool(name), *(math.ceil(count) for _, count in others)))


def _first_spot_option(spec: JobSpec) -> ResourceOption | None:
    """The first spot option of a cloud; None if the job uses no spot nodes."""
    if spec.engine is not Engine.SKYPILOT:
        return None
    return next((each for each in spec.options if uses_spot(each)), None)


def _accelerators(candidate: ResourceOption) -> tuple[str, int]:
    """Name and count of the first accelerators, rounded up; an empty name without any."""
    accelerators = candidate.options.get("accelerators")
    first = accelerators[0] if isinstance(accelerators, list) and accelerators else accelerators
    if isinstance(first, Mapping):
        first = next((name if n is None else f"{name}:{n}" for name, n in first.items()), None)
    for name, number in parse_accelerators(first):
        return name, math.ceil(number)
    # Requested by memory.
    name, _, count = str(first or "").partition(":")
    return name.strip(), int(count) if count.strip().isdecimal() else 1


def _span(seconds: float) -> str:
    minutes = round(timedelta(seconds=seconds) / timedelta(minutes=1))
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
