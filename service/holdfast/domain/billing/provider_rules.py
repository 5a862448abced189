"""Provider rules: charges and credits beyond price times time, each with its source. Pure.

A rule adds a separate line (`Adjustment`), so that phases still add up to the provisioned time. The amount paid is the cost of
the phases plus these lines. Guards ignore rules: a credit would let a job spend money whose return is only expected, and a
minimum charge is less than the amount reserved for saving.

Rules apply to machines, and a launcher may restart a program on the machines it has: adjacent attempts in one place and of one
type form one tenure. A rule applies only once the end of a tenure is known.
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
MINIMUM_MS: Final = 60_000


class BillingRule(StrEnum):
    """A provider rule that changes the amount paid."""

    MINIMUM = "minimum"
    """Minimum charge per machine."""
    FIRST_HOUR = "first_hour"
    """No charge for a spot machine that the provider preempts within its first hour."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BillingTerms:
    """Billing terms of one cloud."""

    minimum_ms: int = 0
    """Minimum billed time of a machine."""
    free_if_reclaimed_within_ms: int = 0
    """Time within which a preempted spot machine is free; 0 if it never is."""
    sources: dict[BillingRule, str]
    """Provider page that documents each rule."""


BILLING_TERMS: Final[dict[str, BillingTerms]] = {
    "aws": BillingTerms(
        minimum_ms=MINIMUM_MS,
        free_if_reclaimed_within_ms=FIRST_HOUR_MS,
        sources={
            BillingRule.MINIMUM: "https://aws.amazon.com/ec2/pricing/on-demand/",
            BillingRule.FIRST_HOUR: "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-for-interrupted-spot-instances.html",
        },
    ),
    "gcp": BillingTerms(
        minimum_ms=MINIMUM_MS,
        sources={BillingRule.MINIMUM: "https://cloud.google.com/compute/vm-instance-pricing"},
    ),
}
"""Terms by SkyPilot's cloud name. Azure bills by the second and has no known rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjustment:
    """A line of a bill that a provider rule adds."""

    attempt: int
    """Number of the tenure's last attempt."""
    zone: str
    rule: BillingRule
    micros: int
    """Amount added to the bill; negative for a credit."""
    source: str


@dataclass(frozen=True, slots=True)
class BilledUsage:
    """Billed usage of one attempt."""

    attempt: Attempt
    begin_ms: int
    end_ms: int
    rates: Sequence[RateSchedule]
    """Rates, one for each group of nodes."""

    @property
    def is_real(self) -> bool:
        """Whether the usage has ended and was billed by a provider."""
        return self.attempt.ended_at is not None and not self.attempt.ready.simulated


def adjustments(stays: Iterable[BilledUsage]) -> Iterator[Adjustment]:
    """Adjustments of a job's attempts under the rules of their clouds."""
    for tenure in _group_by_machines(stays):
        last = tenure[-1]
        terms = BILLING_TERMS.get(last.attempt.ready.cloud)
        if terms is None or not last.is_real:
            continue
        if credit := _first_hour(tenure, terms):
            yield credit
        else:
            yield from _minimum(tenure, terms)


def _group_by_machines(stays: Iterable[BilledUsage]) -> Iterator[list[BilledUsage]]:
    """Group attempts that ran on the same machines."""
    tenure: list[BilledUsage] = []
    for stay in stays:
        if tenure and not _continues(tenure[-1], stay):
            yield tenure
            tenure = []
        tenure.append(stay)
    if tenure:
        yield tenure


def _continues(before: BilledUsage, after: BilledUsage) -> bool:
    one, other = before.attempt.ready, after.attempt.ready
    same = (one.cloud, one.zone, one.instance_type, one.nodes) == (
        *(other.cloud, other.zone, other.instance_type, other.nodes),
    )
    return same and before.end_ms == after.begin_ms and before.attempt.ended_at == other.at


def _first_hour(tenure: Sequence[BilledUsage], terms: BillingTerms) -> Adjustment | None:
    """The credit for one machine.

    Only one is known to be preempted; the others were released because of it.
    """
    last = tenure[-1]
    lasted_ms = last.end_ms - tenure[0].begin_ms
    proven = last.attempt.cause is Cause.PREEMPTED and not last.attempt.is_drill
    if not proven or lasted_ms >= terms.free_if_reclaimed_within_ms:
        return None
    spot = [
        (_paid(tenure, index) // part.nodes, part.zone)
        for index, part in enumerate(last.attempt.ready.parts)
        if part.is_spot and part.nodes
    ]
    if not spot:
        return None
    micros, zone = min(spot)
    return _adjustment(last, zone, BillingRule.FIRST_HOUR, -micros, terms) if micros else None


def _minimum(tenure: Sequence[BilledUsage], terms: BillingTerms) -> Iterator[Adjustment]:
    last, begin_ms = tenure[-1], tenure[0].begin_ms
    missing_ms = terms.minimum_ms - (last.end_ms - begin_ms)
    if missing_ms <= 0:
        return
    for part, tariff in zip(last.attempt.ready.parts, last.rates, strict=True):
        until = last.end_ms + missing_ms
        micros = tariff.micros(last.begin_ms, until) - tariff.micros(last.begin_ms, last.end_ms)
        if micros:
            yield _adjustment(last, part.zone, BillingRule.MINIMUM, micros, terms)


def _paid(tenure: Sequence[BilledUsage], index: int) -> int:
    """Cost of one group of nodes over a tenure. All attempts of a tenure have the same groups."""
    fits = (stay for stay in tenure if index < len(stay.rates))
    return sum(stay.rates[index].micros(stay.begin_ms, stay.end_ms) for stay in fits)


def _adjustment(
    stay: BilledUsage, zone: str, rule: BillingRule, micros: int, terms: BillingTerms
) -> Adjustment:
    return Adjustment(
        attempt=stay.attempt.ready.attempt,
        zone=zone,
        rule=rule,
        micros=micros,
        source=terms.sources[rule],
    )
