"""The parts of a running service that API routes use."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from sqlalchemy import Engine as SqlEngine

from holdfast.code_upload.upload_store import Uploads
from holdfast.confinement import Confinement
from holdfast.domain.access.audit import AuditAction, ChainHead
from holdfast.domain.access.permissions import Caller
from holdfast.domain.charges.resource_prices import NO_PRICES, ResourcePrices
from holdfast.domain.events import Event
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import Job
from holdfast.errors import StaleWrite
from holdfast.ingest.group_commit import ReportGroupCommit
from holdfast.market.markets import Markets
from holdfast.market.planners import Planners
from holdfast.ports import (
    AdmissionReview,
    Clock,
    Launcher,
    LauncherHealth,
    Messenger,
    OpenBucket,
    PriceCatalog,
)
from holdfast.rate_limit import RateLimiter
from holdfast.single_sign_on.flows import SingleSignOn
from holdfast.store.audit_log import AuditLog
from holdfast.store.billing.bills import BillRollups
from holdfast.store.billing.costs import CostQueries
from holdfast.store.billing.job_summaries import JobSummaries
from holdfast.store.billing.preemption_costs import PreemptionCostQueries
from holdfast.store.billing.preemptions import PreemptionQueries
from holdfast.store.identity.access_tokens import AccessTokens
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.identity.sessions import Sessions
from holdfast.store.identity.users import Users
from holdfast.store.incarnations import Incarnations
from holdfast.store.job_removal import Removals
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from holdfast.store.leases import LeaseTable
from holdfast.store.machines.gpu_health import GpuHealth
from holdfast.store.market.observations import PlaceObservations
from holdfast.store.metrics import MetricSeries
from holdfast.store.nodes.commands import CommandBoard
from holdfast.store.nodes.shells import ShellStreams
from holdfast.store.notifications.channels import Channels
from holdfast.store.notifications.outbox import Outbox
from holdfast.store.queries import Queries
from holdfast.store.rendezvous import Rendezvous
from holdfast.store.retention_queue import RetentionQueue
from holdfast.store.secrets import Secrets
from holdfast.telemetry import ProcessMetrics

T = TypeVar("T")


class LauncherCall(Protocol):
    """Runs a launcher call in the event loop of its connections; awaitable from any other loop."""

    def __call__(self, request: Coroutine[Any, Any, T], /) -> Awaitable[T]:
        """The result or exception of `request`."""
        ...


def call_directly(request: Coroutine[Any, Any, T], /) -> Awaitable[T]:
    """Await a request directly, if there is only one event loop."""
    return request


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of a running service, assembled by `holdfast.server.process` or by a test."""

    engine: SqlEngine
    journal: Journal
    queries: Queries
    leases: LeaseTable
    tokens: ServiceTokens
    secrets: Secrets
    channels: Channels
    messenger: Messenger
    launchers: Mapping[Engine, Launcher]
    launches: LaunchBook
    prices: PriceCatalog
    clock: Clock
    confinement: Confinement = field(default_factory=Confinement)
    """Resources of the service's machine that users' jobs may use."""
    uploads: Uploads | None = None
    """Code that clients uploaded; None: the service accepts none."""
    open_bucket: OpenBucket | None = None
    """Opens a job's part of its checkpoint store; None if stores are not used, as in a demonstration."""
    runs_node_commands: bool = True
    """Whether users may run commands on the nodes of their jobs."""
    max_sweep_jobs: int = 500
    """Jobs that a sweep may have."""
    billing_rules: bool = True
    """Whether bills apply the rules of providers."""
    resource_prices: ResourcePrices = NO_PRICES
    """Prices of what jobs use beside their nodes."""
    health: Callable[[], Sequence[LauncherHealth]] = tuple
    """Last known health of the launchers, without a request to them."""
    read_admission: Callable[[bytes], AdmissionReview]
    """Parses a request of SkyPilot's admission policy; raises `BadRequest` if it is malformed."""
    worker_url: str = ""
    """The address to which workers report."""
    nudge: Callable[[], None] = lambda: None
    """Wakes the reconciler before its next scheduled run."""
    call_launcher: LauncherCall = call_directly
    """Calls launchers in the event loop that owns their connections."""
    is_reconciling: Callable[[], bool] = lambda: True
    """Whether the reconciler of this process runs."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the service is about to stop, so that streams end."""

    orphans: Callable[[], Mapping[Engine, int]] = dict
    """Resources that the newest sweep of each launcher found and could not stop."""
    rate_limiter: RateLimiter = field(default_factory=lambda: RateLimiter(time.monotonic))
    """Limits of requests and live streams."""
    disk_error: Callable[[], str | None] = lambda: None
    """Why required files cannot be written; None if they can."""
    single_sign_on: SingleSignOn | None = None
    """Sign-in through an identity provider; None: with access tokens only."""
    trust_loopback: bool | None = None
    """Whether a caller on this machine without a token is the owner; None: until there are
    users, or single sign-on."""
    metrics: ProcessMetrics = field(default_factory=ProcessMetrics)
    """Metrics of this process."""
    anchored_head: Callable[[], ChainHead] = ChainHead
    """The newest row of the audit log as stored outside the database."""
    reconciler_planners: Planners | None = None
    demo_seed: int | None = None
    """Random seed of a demonstration; None: this service is real."""

    @cached_property
    def report_commits(self) -> ReportGroupCommit:
        """Group commit of worker reports."""
        return ReportGroupCommit(self.journal, self.metrics)

    @cached_property
    def bill_rollups(self) -> BillRollups:
        """Precomputed bills of jobs."""
        return BillRollups(
            self.engine, with_rules=self.billing_rules, resource_prices=self.resource_prices
        )

    @cached_property
    def planners(self) -> Planners:
        """Planners of jobs, those of the reconciler if it runs in this process."""
        if self.reconciler_planners:
            return self.reconciler_planners
        return Planners(Markets(self.engine, self.prices, self.launchers))

    @property
    def markets(self) -> Markets:
        """The markets of jobs."""
        return self.planners.markets

    @property
    def place_observations(self) -> PlaceObservations:
        """Observations of places by jobs, and imported ones."""
        return PlaceObservations(self.engine)

    @cached_property
    def job_summaries(self) -> JobSummaries:
        """Summaries of jobs for lists."""
        return JobSummaries(self.queries, with_rules=self.billing_rules)

    @property
    def costs(self) -> CostQueries:
        """Cost totals over the precomputed bills."""
        return CostQueries(self.engine, self.bill_rollups)

    @property
    def series(self) -> MetricSeries:
        """Series of logged metrics."""
        return MetricSeries(self.engine)

    @property
    def gpu_health(self) -> GpuHealth:
        """The GPUs of jobs."""
        return GpuHealth(self.engine, self.clock)

    @property
    def preemptions(self) -> PreemptionQueries:
        """Preemption statistics over the precomputed bills."""
        return PreemptionQueries(self.bill_rollups)

    @property
    def preemption_costs(self) -> PreemptionCostQueries:
        """Cost of preemptions by notice and by job, over the precomputed bills."""
        return PreemptionCostQueries(self.bill_rollups)

    def project_seen(self, caller: Caller, job_id: str) -> str | None:
        """The project of a job; None if it does not exist or the caller may not see it."""
        project = self.queries.project_of(job_id)
        return project if project is not None and caller.may_see(project) else None

    def append_with_retry(
        self,
        job: Job,
        decide: Callable[[Job], Sequence[Event]],
        action: Callable[[Job], AuditAction],
    ) -> Job:
        """Append the events that `decide` returns for the job, retrying after concurrent writes, and
        wake the reconciler.

        `action` returns the entry of the audit log.
        """
        while events := decide(job):
            try:
                job = self.journal.append(job, events, action(job))
            except StaleWrite:
                job = self.journal.read(job.id)
            else:
                break
        self.leases.make_due(job.id, self.clock.now())
        self.nudge()
        return job

    def trusts_loopback(self) -> bool:
        """Whether a caller on this machine without a token is the owner."""
        if self.trust_loopback is None:
            return self.single_sign_on is None and not self.users.has_users()
        return self.trust_loopback

    @property
    def access_tokens(self) -> AccessTokens:
        """The access tokens of users."""
        return self.tokens.access_tokens

    @property
    def users(self) -> Users:
        """Users, projects, and their members' roles."""
        return Users(self.engine, self.clock)

    @property
    def sessions(self) -> Sessions:
        """The sessions of browsers."""
        return Sessions(self.engine)

    @property
    def audit(self) -> AuditLog:
        """The audit log."""
        return AuditLog(self.engine, self.clock)

    @property
    def incarnations(self) -> Incarnations:
        """The incarnations of jobs' workers."""
        return Incarnations(self.engine, self.clock)

    @cached_property
    def node_commands(self) -> CommandBoard:
        """Commands on the nodes of jobs."""
        return CommandBoard(self.engine, self.clock)

    @cached_property
    def node_shells(self) -> ShellStreams:
        """Input and output of shells on the nodes of jobs."""
        return ShellStreams(self.engine, self.clock)

    @property
    def rendezvous(self) -> Rendezvous:
        """Where the nodes of jobs' groups meet."""
        return Rendezvous(self.engine, self.clock)

    @property
    def outbox(self) -> Outbox:
        """Waiting notifications, and messages."""
        return Outbox(self.engine, self.clock)

    @property
    def removals(self) -> Removals:
        """Removed jobs."""
        return Removals(self.engine, self.clock)

    @property
    def retention_queue(self) -> RetentionQueue:
        """The queue of checkpoint retention."""
        return RetentionQueue(self.engine)
