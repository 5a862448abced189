"""Whether a job on spot nodes would keep what it trains: has it a store, and does it save before its nodes go? Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast_worker.protocol.policies import Cadence, Rhythm

from holdfast.domain.jobfile.accelerator_catalog import accelerators
from holdfast.domain.jobfile.resource_options import ResourceOption, candidates, takes_spot
from holdfast.domain.jobfile.spec import Checkpoint, Engine, JobSpec
from holdfast.errors import BadJobFile, Flaw

ENOUGH_LOSSES: Final = 5
"""Losses of our own from which on they are believed. Fewer judge the market by an accident; more by tables for longer."""
USUAL_S: Final = 2 * 3600
"""How long nodes last of which nobody knows anything: what workers reckon with, too."""
PRIORS_S: Final[Mapping[tuple[str, bool], int]] = {
    # V100 nodes with one accelerator in six zones of AWS, thirty days from 2023-02-15: 2,518 hours, 877 ends.
    ("aws", False): 10_300,
    # V100 nodes with eight in two zones of AWS, four weeks from 2022-10-26: 614 hours, 669 ends.
    ("aws", True): 3_300,
    # A100 in five zones of GCP, 770 looks 150 s apart: 137 hours, 18 ends.
    ("gcp", False): 27_000,
    ("gcp", True): 27_000,
}
"""Mean time for which spot nodes could be had, in seconds, by cloud and by whether they have eight accelerators or more.

From the availability traces behind "Can't Be Late" (NSDI'24) and SkyServe (EuroSys'25). They are launch probes: whoever
holds a node keeps it as long or longer, so that these are low, and a job that is refused by them is one that would
lose most of its work in such weeks.
"""
_MANY: Final = 8


@dataclass(frozen=True, slots=True)
class HistoricalLifetimes:
    """What jobs on the same kind of nodes have had here."""

    node_s: float = 0.0
    """Seconds with nodes, all of them together."""
    losses: int = 0
    """How often nodes were taken away."""


def kind_of(resources: Mapping[str, Any]) -> str:
    """The kind of nodes that a job takes first, as one word: cloud and accelerators."""
    first = candidates(resources)[0]
    name, count = _accelerators(first)
    return f"{first.cloud or 'any'}/{name.lower() or 'none'}:{count}"


def expected_s(candidate: ResourceOption, past: HistoricalLifetimes) -> tuple[float, str]:
    """How long nodes are expected to last, in seconds, and how that is known."""
    if past.losses >= ENOUGH_LOSSES:
        return past.node_s / past.losses, f"as {past.losses} losses of such nodes here tell"
    prior_s = PRIORS_S.get((candidate.cloud or "", _accelerators(candidate)[1] >= _MANY))
    if prior_s is None:
        return USUAL_S, "as is reckoned of nodes of which nothing is known"
    return prior_s, f"as traces of {candidate.cloud} tell"


def accept(spec: JobSpec, past: HistoricalLifetimes, *, force: bool) -> tuple[str, ...]:
    """Notes on what a job risks on spot nodes, with what `force` accepts.

    Raises:
        BadJobFile: it would lose its work, and `force` does not accept that.
    """
    flaws = unsafe(spec, past)
    if flaws and not force:
        raise BadJobFile(flaws)
    accepted = tuple(f"refused without --force: {flaw.pointer} {flaw.message}" for flaw in flaws)
    return *accepted, *notes_of_safety(spec, past)


def unsafe(spec: JobSpec, past: HistoricalLifetimes) -> tuple[Flaw, ...]:
    """Why a job would lose its work on spot nodes; nothing where it would not, or takes none."""
    spot = _spot(spec)
    checkpoint = spec.holdfast.checkpoint
    if spot is None:
        return ()
    if checkpoint is None:
        told = (
            "is missing, and spot nodes are taken away: the job would begin at step 0 each time; write "
            "checkpoint: {store: s3://bucket/prefix}, or use_spot: false under resources, or accept it with --force"
        )
        return (Flaw("#/holdfast/checkpoint", told),)
    return tuple(_too_seldom(checkpoint, spot, past))


def notes_of_safety(spec: JobSpec, past: HistoricalLifetimes) -> Iterator[str]:
    """What nobody can judge: steps whose time is not known before they were made."""
    spot, checkpoint = _spot(spec), spec.holdfast.checkpoint
    if spot is None or checkpoint is None:
        return
    if Cadence.parse(checkpoint.every).rhythm is Rhythm.STEPS:
        lasts_s, known = expected_s(spot, past)
        yield (
            f"holdfast.checkpoint.every: how long {checkpoint.every} take is not known before they are made; such nodes are "
            f"expected to last {_span(lasts_s)}, {known}. auto measures it"
        )


def _too_seldom(
    checkpoint: Checkpoint, spot: ResourceOption, past: HistoricalLifetimes
) -> Iterator[Flaw]:
    cadence = Cadence.parse(checkpoint.every)
    lasts_s, known = expected_s(spot, past)
    if cadence.rhythm is Rhythm.SECONDS and cadence.amount > lasts_s:
        told = (
            f"is {checkpoint.every}, and such spot nodes are expected to last {_span(lasts_s)}, {known}: most of them would "
            "go before they have saved anything; write auto, or a shorter time, or accept it with --force"
        )
        yield Flaw("#/holdfast/checkpoint/every", told)


def gpus(spec: JobSpec) -> int:
    """How many accelerators all nodes of a job have together, by its first choice; 0 where it asks for none."""
    first = next(iter(candidates(spec.resources)), None)
    name, count = _accelerators(first) if first else ("", 0)
    return count * spec.num_nodes if name else 0


def _spot(spec: JobSpec) -> ResourceOption | None:
    """The first spot nodes that the job may get from a cloud; None if it takes none."""
    if spec.engine is not Engine.SKYPILOT:
        return None
    return next((each for each in candidates(spec.resources) if takes_spot(each)), None)


def _accelerators(candidate: ResourceOption) -> tuple[str, int]:
    """Name and count of the first accelerators that would do, a part of one as one; an empty name without any."""
    said = candidate.words.get("accelerators")
    first = said[0] if isinstance(said, list) and said else said
    if isinstance(first, Mapping):
        first = next((name if n is None else f"{name}:{n}" for name, n in first.items()), None)
    for name, number in accelerators(first):
        return name, math.ceil(number)
    # Asked for by their memory.
    name, _, count = str(first or "").partition(":")
    return name.strip(), int(count) if count.strip().isdecimal() else 1


def _span(seconds: float) -> str:
    minutes = round(timedelta(seconds=seconds) / timedelta(minutes=1))
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
