"""What providers do to a bill beyond price times time: pure data, each rule with its source.

A rule moves money by a line of its own (`Adjustment`), so that phases go on to add up to the provisioned time, and
what was paid is the money of the phases plus these lines. Guards do not know them: a credit would let a job run on for
money that is only believed to come back, and a minimum is less than what they leave for saving anyway.

Rules are about machines, and a launcher may start a program anew on those that it has: attempts that touch, in one place
and of one kind, are one tenure. Nothing is said of what stands: a rule is asked once its end is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.domain.attempts import Attempt
from holdfast.domain.billing.rate import RateSchedule
from holdfast.domain.events import Cause

FIRST_HOUR_MS: Final = 3_600_000
LEAST_MS: Final = 60_000


class BillingRule(StrEnum):
    """A rule that moves money."""

    MINIMUM = "minimum"
    """A machine is charged for a time at least, however soon it goes."""
    FIRST_HOUR = "first_hour"
    """A spot machine that its provider takes back in its first hour costs nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BillingTerms:
    """What one cloud charges."""

    least_ms: int = 0
    """What a machine is charged for at least."""
    free_if_taken_within_ms: int = 0
    """How soon a spot machine has to be taken back to cost nothing; 0: it never does."""
    sources: dict[BillingRule, str]
    """The page on which the provider says so."""


TERMS: Final[dict[str, BillingTerms]] = {
    "aws": BillingTerms(
        least_ms=LEAST_MS,
        free_if_taken_within_ms=FIRST_HOUR_MS,
        sources={
            BillingRule.MINIMUM: "https://aws.amazon.com/ec2/pricing/on-demand/",
            BillingRule.FIRST_HOUR: "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html",
        },
    ),
    "gcp": BillingTerms(
        least_ms=LEAST_MS,
        sources={BillingRule.MINIMUM: "https://cloud.google.com/compute/vm-instance-pricing"},
    ),
}
"""By SkyPilot's name of the cloud. Of Azure, which bills by the second, no rule is known that moves money."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjustment:
    """A line of a bill that a rule has made."""

    attempt: int
    """The last one of the tenure."""
    zone: str
    rule: BillingRule
    micros: int
    """What it adds to the bill; less than 0 for a credit."""
    source: str


@dataclass(frozen=True, slots=True)
class BilledUsage:
    """The paid time of one attempt."""

    attempt: Attempt
    begin_ms: int
    end_ms: int
    tariffs: Sequence[RateSchedule]
    """One for each of its parts."""

    @property
    def is_real(self) -> bool:
        """Whether its end is known, and somebody is paid for it."""
        return self.attempt.ended_at is not None and not self.attempt.ready.simulated


def adjustments(stays: Iterable[BilledUsage]) -> Iterator[Adjustment]:
    """What the rules of their clouds make of the attempts of a job."""
    for tenure in _tenures(stays):
        last = tenure[-1]
        terms = TERMS.get(last.attempt.ready.cloud)
        if terms is None or not last.is_real:
            continue
        if credit := _first_hour(tenure, terms):
            yield credit
        else:
            yield from _minimum(tenure, terms)


def _tenures(stays: Iterable[BilledUsage]) -> Iterator[list[BilledUsage]]:
    """Attempts on the same machines."""
    tenure: list[BilledUsage] = []
    for stay in stays:
        if tenure and not _goes_on(tenure[-1], stay):
            yield tenure
            tenure = []
        tenure.append(stay)
    if tenure:
        yield tenure


def _goes_on(before: BilledUsage, after: BilledUsage) -> bool:
    one, other = before.attempt.ready, after.attempt.ready
    same = (one.cloud, one.zone, one.instance_type, one.nodes) == (
        *(other.cloud, other.zone, other.instance_type, other.nodes),
    )
    return same and before.end_ms == after.begin_ms and before.attempt.ended_at == other.at


def _first_hour(tenure: Sequence[BilledUsage], terms: BillingTerms) -> Adjustment | None:
    """One machine's money back. Only of one is it known that it was taken; the others were given up for it."""
    last = tenure[-1]
    lasted_ms = last.end_ms - tenure[0].begin_ms
    proven = last.attempt.cause is Cause.PREEMPTED
    if not proven or lasted_ms >= terms.free_if_taken_within_ms:
        return None
    spot = [
        (_paid(tenure, index) // part.nodes, part.zone)
        for index, part in enumerate(last.attempt.ready.parts)
        if part.is_spot and part.nodes
    ]
    if not spot:
        return None
    micros, zone = min(spot)
    return _line(last, zone, BillingRule.FIRST_HOUR, -micros, terms) if micros else None


def _minimum(tenure: Sequence[BilledUsage], terms: BillingTerms) -> Iterator[Adjustment]:
    last, begin_ms = tenure[-1], tenure[0].begin_ms
    missing_ms = terms.least_ms - (last.end_ms - begin_ms)
    if missing_ms <= 0:
        return
    for part, tariff in zip(last.attempt.ready.parts, last.tariffs, strict=True):
        until = last.end_ms + missing_ms
        micros = tariff.micros(last.begin_ms, until) - tariff.micros(last.begin_ms, last.end_ms)
        if micros:
            yield _line(last, part.zone, BillingRule.MINIMUM, micros, terms)


def _paid(tenure: Sequence[BilledUsage], index: int) -> int:
    """What one part of the nodes has cost over a tenure. Attempts of one tenure have the same parts, or none fits."""
    fits = (stay for stay in tenure if index < len(stay.tariffs))
    return sum(stay.tariffs[index].micros(stay.begin_ms, stay.end_ms) for stay in fits)


def _line(
    stay: BilledUsage, zone: str, rule: BillingRule, micros: int, terms: BillingTerms
) -> Adjustment:
    return Adjustment(
        attempt=stay.attempt.ready.attempt,
        zone=zone,
        rule=rule,
        micros=micros,
        source=terms.sources[rule],
    )
