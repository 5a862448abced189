"""Quotas: what the jobs of a user, of a project or of the whole service may hold at once.

A job holds its share from its admission until it has ended or is paused, also while it recovers from preemptions. A share is what the
job file asks for at most: nodes, accelerators (of the alternative with the most), and dollars per hour at the prices of the
submission.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from holdfast.domain.events.values import Demand
from holdfast.domain.jobfile.limits import MICROS_PER_USD, format_usd
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobfile.spot_safety import option_accelerators

SERVICE_NAME: Final = "all"
"""Name of the quota of the service in commands and the API."""


class QuotaScope(StrEnum):
    """Whose jobs a quota counts."""

    SERVICE = "service"
    PROJECT = "project"
    USER = "user"


class QuotaKind(StrEnum):
    """What a quota limits."""

    JOBS = "jobs"
    NODES = "nodes"
    GPUS = "gpus"
    HOURLY_COST = "hourly_cost"

    def text(self, amount: int) -> str:
        """An amount for messages: 1 node, 8 GPUs, $4.00 an hour."""
        if self is QuotaKind.HOURLY_COST:
            return f"{format_usd(amount)} an hour"
        unit = "GPUs" if self is QuotaKind.GPUS else self.value
        return f"{amount:,} {unit.removesuffix('s') if amount == 1 else unit}"

    def option_value(self, amount: int) -> str:
        """An amount for the option of a command; costs in dollars, rounded up to cents."""
        if self is not QuotaKind.HOURLY_COST:
            return str(amount)
        cents = -(-amount * 100 // MICROS_PER_USD)
        return f"{cents // 100}.{cents % 100:02}"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldShares:
    """The sum of the shares of several jobs."""

    jobs: int = 0
    nodes: int = 0
    gpus: int = 0
    micros_per_hour: int = 0

    def plus(self, demand: Demand) -> Self:
        """These shares with that of another job."""
        return type(self)(
            jobs=self.jobs + 1,
            nodes=self.nodes + demand.nodes,
            gpus=self.gpus + demand.gpus,
            micros_per_hour=self.micros_per_hour + demand.micros_per_hour,
        )

    def minus(self, demand: Demand) -> Self:
        """These shares without that of one of their jobs."""
        return type(self)(
            jobs=self.jobs - 1,
            nodes=self.nodes - demand.nodes,
            gpus=self.gpus - demand.gpus,
            micros_per_hour=self.micros_per_hour - demand.micros_per_hour,
        )

    def amount(self, kind: QuotaKind) -> int:
        """The amount that a quota of this kind counts."""
        match kind:
            case QuotaKind.JOBS:
                return self.jobs
            case QuotaKind.NODES:
                return self.nodes
            case QuotaKind.GPUS:
                return self.gpus
            case QuotaKind.HOURLY_COST:
                return self.micros_per_hour


NOTHING_HELD: Final = HeldShares()


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """What the jobs of one scope may hold at once; None: unlimited."""

    scope: QuotaScope
    name: str
    """Name of the project or the user; `all` for the service."""
    jobs: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    micros_per_hour: int | None = None
    may_pause_for_priority: bool = False
    """Whether running spot jobs of a project may be paused for waiting ones of a higher priority."""

    @property
    def key(self) -> tuple[QuotaScope, str]:
        """What identifies the quota."""
        return self.scope, self.name

    @property
    def description(self) -> str:
        """The quota as a phrase for messages."""
        if self.scope is QuotaScope.SERVICE:
            return "the quota of the service"
        return f"the quota of {self.scope} {self.name}"

    def limit(self, kind: QuotaKind) -> int | None:
        """The largest amount of this kind; None: unlimited."""
        match kind:
            case QuotaKind.JOBS:
                return self.jobs
            case QuotaKind.NODES:
                return self.nodes
            case QuotaKind.GPUS:
                return self.gpus
            case QuotaKind.HOURLY_COST:
                return self.micros_per_hour

    def applies_to(self, project: str, owner: str) -> bool:
        """Whether the quota counts jobs of this project and owner."""
        match self.scope:
            case QuotaScope.SERVICE:
                return True
            case QuotaScope.PROJECT:
                return self.name == project
            case QuotaScope.USER:
                return self.name == owner

    def lacking(self, held: HeldShares, demand: Demand) -> Iterator[QuotaKind]:
        """The kinds of which there is no room for another job beside what is held."""
        after, before = held.plus(demand), NOTHING_HELD.plus(demand)
        for kind in QuotaKind:
            limit = self.limit(kind)
            # A job that needs none of a kind fits, even if a lowered quota of it is exceeded.
            if limit is not None and before.amount(kind) and after.amount(kind) > limit:
                yield kind

    def never_fits(self, demand: Demand) -> str:
        """Why a job exceeds the quota even without others, with the remedy; empty if it does not."""
        alone = NOTHING_HELD.plus(demand)
        for kind in self.lacking(NOTHING_HELD, demand):
            allowed = kind.text(self.limit(kind) or 0)
            return (
                f"needs {kind.text(alone.amount(kind))}, and {self.description} allows {allowed} at once; ask for less, or raise "
                f"it with: {self._raised_for(alone)}"
            )
        return ""

    def _raised_for(self, alone: HeldShares) -> str:
        """The command that makes room for a job. It names all limits, as it replaces the quota."""
        name = [] if self.scope is QuotaScope.SERVICE else [self.name]
        words = ["holdfast quota set", self.scope.value, *map(shlex.quote, name)]
        for kind in QuotaKind:
            if (limit := self.limit(kind)) is not None:
                words += [_OPTIONS[kind], kind.option_value(max(limit, alone.amount(kind)))]
        return " ".join([*words, *["--pause-for-priority"] * self.may_pause_for_priority])


_OPTIONS: Final = {
    QuotaKind.JOBS: "--jobs",
    QuotaKind.NODES: "--nodes",
    QuotaKind.GPUS: "--gpus",
    QuotaKind.HOURLY_COST: "--hourly-cost",
}


def refusal(quotas: Iterable[Quota], demand: Demand) -> str:
    """Why a job can never be admitted under these quotas, with the remedy; empty if it can."""
    return next(filter(None, (quota.never_fits(demand) for quota in quotas)), "")


def demand_of(spec: JobSpec, micros_per_hour: int = 0) -> Demand:
    """What a job asks for at most, with the most accelerators of its alternatives."""
    return Demand(
        nodes=spec.num_nodes,
        gpus=sum(
            part.num_nodes * max(map(option_accelerators, part.options)) for part in spec.parts
        ),
        micros_per_hour=micros_per_hour,
    )
