"""What routes are given to work with."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event
from typing import Any, Protocol, TypeVar

from sqlalchemy import Engine as SqlEngine

from holdfast.api.rate_limit import RateLimiter
from holdfast.code_upload.upload_store import Uploads
from holdfast.confinement import Confinement
from holdfast.controller.launcher_health import LauncherHealth
from holdfast.domain.access.audit import ChainHead
from holdfast.domain.jobfile.spec import Engine
from holdfast.ingest.group_commit import ReportGroupCommit
from holdfast.ports import Clock, Launcher, Messenger, PriceCatalog
from holdfast.store.audit_log import Audit
from holdfast.store.billing.bills import BillRollups
from holdfast.store.billing.costs import CostQueries
from holdfast.store.billing.job_summaries import Digests
from holdfast.store.billing.preemption_costs import PreemptionCostQueries
from holdfast.store.billing.preemptions import PreemptionQueries
from holdfast.store.channels import Channels
from holdfast.store.identity.access_tokens import AccessTokens
from holdfast.store.identity.service_tokens import Tokens
from holdfast.store.identity.sessions import Sessions
from holdfast.store.identity.users import Users
from holdfast.store.incarnations import Incarnations
from holdfast.store.job_removal import Removals
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from holdfast.store.leases import LeaseTable
from holdfast.store.metrics import MetricSeries
from holdfast.store.outbox import Outbox
from holdfast.store.queries import Queries
from holdfast.store.retention_queue import RetentionQueue
from holdfast.store.secrets import Secrets
from holdfast.telemetry import ProcessMetrics

T = TypeVar("T")


class LauncherCall(Protocol):
    """Asks a launcher, in the event loop to which its connections belong; the answer is awaited in any other."""

    def __call__(self, question: Coroutine[Any, Any, T], /) -> Awaitable[T]:
        """What `question` returns or raises."""
        ...


def ask_here(question: Coroutine[Any, Any, T], /) -> Awaitable[T]:
    """The answer, where there is but one loop."""
    return question


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of a running service, put together by `holdfast.server.process` or by a test."""

    engine: SqlEngine
    journal: Journal
    reading: Queries
    watches: LeaseTable
    tokens: Tokens
    secrets: Secrets
    channels: Channels
    messenger: Messenger
    launchers: Mapping[Engine, Launcher]
    launches: LaunchBook
    prices: PriceCatalog
    clock: Clock
    confinement: Confinement = field(default_factory=Confinement)
    """What jobs of users may use of the service's machine."""
    uploads: Uploads | None = None
    """Code that clients uploaded; None: the service takes none."""
    billing_rules: bool = True
    """Whether bills follow the rules of providers."""
    health: Callable[[], Sequence[LauncherHealth]] = tuple
    """What is known of the engines behind launchers, without asking them."""
    worker_url: str = ""
    """The address at which workers are told to report."""
    nudge: Callable[[], None] = lambda: None
    """Wakes the reconciler; it would come by itself, only later."""
    ask: LauncherCall = ask_here
    """Asks launchers where they live."""
    is_reconciling: Callable[[], bool] = lambda: True
    """Whether the reconciler of this process runs."""
    stopping: Event = field(default_factory=Event)
    """Set when the service is about to stop, so that streams end."""

    traffic: RateLimiter = field(default_factory=lambda: RateLimiter(time.monotonic))
    """How many requests may come, and how many live streams may be open."""
    disk_trouble: Callable[[], str | None] = lambda: None
    """Why the service could not write what it has to record, in words; None: there is room."""
    trust_loopback: bool | None = None
    """Whether who comes from this machine without a token is its owner; None: until there are users."""
    instruments: ProcessMetrics = field(default_factory=ProcessMetrics)
    """What this process measures of itself."""
    kept_head: Callable[[], ChainHead] = ChainHead
    """The newest row of the audit log that was seen, as it is kept outside of the database."""
    demo_seed: int | None = None
    """What the world of a demonstration was made from; None: this service is real."""

    @cached_property
    def intake(self) -> ReportGroupCommit:
        """Where reports of workers are handed in."""
        return ReportGroupCommit(self.journal, self.instruments)

    @cached_property
    def ledgers(self) -> BillRollups:
        """What jobs have cost, in rows."""
        return BillRollups(self.engine, with_rules=self.billing_rules)

    @cached_property
    def digests(self) -> Digests:
        """What lists show of jobs."""
        return Digests(self.reading, with_rules=self.billing_rules)

    @property
    def costs(self) -> CostQueries:
        """Sums over these rows."""
        return CostQueries(self.engine, self.ledgers)

    @property
    def series(self) -> MetricSeries:
        """Curves of what jobs measured."""
        return MetricSeries(self.engine)

    @property
    def losses(self) -> PreemptionQueries:
        """What became of nodes, over the same rows."""
        return PreemptionQueries(self.ledgers)

    @property
    def tolls(self) -> PreemptionCostQueries:
        """What the market has taken, by warning and by job, over the same rows."""
        return PreemptionCostQueries(self.ledgers)

    def trusts_loopback(self) -> bool:
        """Whether who comes from this machine without a token is its owner."""
        if self.trust_loopback is None:
            return not self.people.any_yet()
        return self.trust_loopback

    @property
    def keyring(self) -> AccessTokens:
        """The access tokens of people."""
        return self.tokens.keyring

    @property
    def people(self) -> Users:
        """Users, projects, and who is what in which."""
        return Users(self.engine, self.clock)

    @property
    def sessions(self) -> Sessions:
        """The sessions of browsers."""
        return Sessions(self.engine)

    @property
    def audit(self) -> Audit:
        """What people did."""
        return Audit(self.engine, self.clock)

    @property
    def musters(self) -> Incarnations:
        """Which worker speaks for a job."""
        return Incarnations(self.engine, self.clock)

    @property
    def outbox(self) -> Outbox:
        """What people are told of jobs, and were."""
        return Outbox(self.engine, self.clock)

    @property
    def removals(self) -> Removals:
        """Jobs that were removed."""
        return Removals(self.engine, self.clock)

    @property
    def upkeep(self) -> RetentionQueue:
        """Which checkpoint stores are tidied, and how that goes."""
        return RetentionQueue(self.engine)
