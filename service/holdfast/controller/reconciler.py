"""The reconciler: claim, observe, decide, record, act.

Only here do clock, database and launchers meet. Every step is computed from scratch: a timer, a nudge and a restart
after a crash run the same code. Events are recorded before the one effect of a step. The effect is idempotent by
its key, so the next observation repairs a crash in between.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.code_upload.upload_store import Uploads
from holdfast.controller.limit_enforcement import LimitEnforcer
from holdfast.controller.orphan_cleanup import OrphanCleaner
from holdfast.controller.queue_admission import POLL_WAITING_EVERY_S, AdmissionQueue
from holdfast.domain.budgets import BudgetBalance
from holdfast.domain.events import Event, Finished, Outcome, Paused, Source
from holdfast.domain.jobfile.spec import Engine, JobSpec, launcher_name
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance
from holdfast.domain.jobs.moves import JobPlanner
from holdfast.domain.jobs.observation import Observation
from holdfast.domain.jobs.reconcile import Effect, ReconcileContext, decide, ms_until_decision
from holdfast.domain.sweeps.sweep import SweepBalance
from holdfast.errors import (
    BadJobFile,
    BadReport,
    BudgetSpent,
    LauncherUnreachable,
    LaunchRefused,
    StaleWrite,
    StoreUnavailable,
)
from holdfast.host.allowed_folders import Folders
from holdfast.log_context import log_context
from holdfast.market.planners import Planners
from holdfast.ports import Clock, Launch, Launcher, ReportInbox, SecretStore
from holdfast.rendering import load_all, render
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.tracing import job_span

log = logging.getLogger(__name__)

BATCH: Final = 64
"""Jobs of one engine that a replica polls at once. A lower value makes a fleet wait; a
higher value makes more concurrent calls than a launcher can bear."""
SPEC_CACHE_SIZE: Final = 4096
"""Jobs whose parsed file is cached. A value below the fleet size parses files at every poll;
a higher value uses memory."""


BALANCE_TTL_S: Final = 5.0
"""Seconds for which a budget balance, including running nodes, is cached. A lower value sums
up the fleet's jobs for each job; a higher value misses the cost of new nodes."""

JOB_COUNT_TTL_S: Final = 5.0
"""Seconds for which the number of polled jobs is cached. A lower value counts more often; a
higher value polls a fleet that has just grown too often."""

TURN_POLL_S: Final = 10.0
"""Seconds between two polls of a job that waits for its turn in a sweep. A lower value reads more; a higher value
delays the job if the end of another one was missed."""

CONCURRENT_SOURCES: Final = frozenset({Source.WORKER, Source.JANITOR})
"""Sources that may write to a job during an observation of its launcher without invalidating it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PollIntervals:
    """How often the reconciler polls."""

    poll_every_s: float = 1.0
    by_engine: Mapping[Engine, float] = field(default_factory=dict)
    """Seconds between two polls for launchers that need another interval."""
    poll_cost_s: Mapping[Engine, float] = field(default_factory=dict)
    """Seconds of a launcher's time per poll: with many jobs, each is polled less often. A
    launcher that sends nudges loses nothing by it."""
    lease_s: float = 10.0
    poll_paused_every_s: float = 60.0
    """Seconds between two reads of a paused job, in case the nudge of its resume is lost. A
    lower value adds reads; a higher value delays the resume."""
    sweep_every_s: float = 60.0
    """Seconds between two sweeps of launchers for orphaned resources."""

    def interval_s(self, engine: Engine, watched: int = 1) -> float:
        """Seconds between two polls of a job without a nudge, given the engine's number of jobs."""
        least_s = self.by_engine.get(engine, self.poll_every_s)
        return max(least_s, self.poll_cost_s.get(engine, 0.0) * watched)


@dataclass(frozen=True, slots=True)
class Lease:
    """A job that is leased to this replica."""

    job_id: str
    engine: Engine
    until: datetime


class Reconciler:
    """Moves every live job towards its desired state."""

    def __init__(
        self,
        *,
        journal: Journal,
        leases: LeaseTable,
        tokens: ServiceTokens,
        launchers: Mapping[Engine, Launcher],
        inbox: ReportInbox,
        clock: Clock,
        intervals: PollIntervals,
        worker_url: str,
        secrets: SecretStore,
        folders: Folders = Folders(),
        uploads: Uploads | None = None,
        planners: Planners | None = None,
    ) -> None:
        """`planners` plan jobs; without them, jobs are launched as their files say."""
        self._journal = journal
        self._leases = leases
        self._tokens = tokens
        self._launchers = launchers
        self._inbox = inbox
        self._clock = clock
        self._intervals = intervals
        self._worker_url = worker_url
        self._secrets = secrets
        self._folders = folders
        self._uploads = uploads
        self._planners = planners
        self._spec = functools.lru_cache(SPEC_CACHE_SIZE)(self._read_spec)
        self._job_counts: dict[Engine, tuple[datetime, int]] = {}
        self._balances: dict[tuple[str, str], tuple[datetime, tuple[BudgetBalance, ...]]] = {}
        self._sweeps: dict[str, SweepBalance] = {}
        self._logged: dict[str, str] = {}
        """Last logged poll error, by job."""
        self._queue = AdmissionQueue(journal.queue, leases, clock)
        self.orphan_cleaner = OrphanCleaner(journal=journal, launchers=launchers, clock=clock)
        self.limit_enforcer = LimitEnforcer(
            journal=journal,
            leases=leases,
            clock=clock,
            context=self._planned_context,
            lease_s=intervals.lease_s,
        )

    async def sweep(self) -> int:
        """Take one step for every job that is due and wait for all; returns the number of steps."""
        claimed = self.claim()
        await asyncio.gather(*map(self.process, claimed))
        return len(claimed)

    def claim(self, under_way: Collection[Lease] = ()) -> list[Lease]:
        """Lease the jobs that are due to this replica, except those `under_way`.

        Jobs under way count against the limit of their engine.

        Raises:
            StoreUnavailable: the database is unavailable; leased jobs become due again when the lease
                expires.
        """
        now, lease_s = self._clock.now(), self._intervals.lease_s
        until = now + timedelta(seconds=lease_s)
        busy = Counter(lease.engine for lease in under_way)
        without = {lease.job_id for lease in under_way}
        due = self._leases.due_engines(now, without)
        return [
            Lease(job_id, engine, until)
            for engine in Engine
            if engine in due
            for job_id in self._leases.claim(engine, now, lease_s, BATCH - busy[engine], without)
        ]

    async def step(self, job_id: str) -> Job:
        """Observe a job once, act on the observation and return the job.

        Raises:
            LauncherUnreachable: no observation was made, or the result of the effect is unknown.
            StaleWrite: another replica changed the job in the meantime; nothing was recorded here.
            StoreUnavailable: nothing was recorded, or the effect was not reached.
        """
        job = self._journal.read(job_id)
        if job.state in {State.PAUSED, State.ENDED}:
            return job
        try:
            launcher = self._launcher(self._spec(job_id, job.spec_seq).engine)
            seen = await self._observe(launcher, job)
        except LauncherUnreachable:
            self.limit_enforcer.enforce(job_id)
            raise
        # After the observation, so that a worker's last reports are known before its end.
        job = self._ingest_reports(job)
        context = replace(self._reconcile_context(job), planner=await self._planner(job))
        plan = decide(job, seen, self._clock.now(), context)
        if not plan.record and plan.effect is None:
            return job
        kinds = ", ".join(type(event).__name__ for event in plan.record)
        with job_span("reconcile", job.id, events=kinds):
            job = self._append(job, plan.record)
            with log_context(launch=job.launch_key):
                return await self._act(launcher, job, plan.effect)

    @staticmethod
    async def _observe(launcher: Launcher, job: Job) -> Observation | None:
        """The observation of the newest launch; None if no nodes may exist."""
        if not job.is_launched:
            return None
        with log_context(launch=job.launch_key):
            return await launcher.observe(job.launch_key)

    async def _act(self, launcher: Launcher, job: Job, effect: Effect | None) -> Job:
        match effect:
            case Effect.SUBMIT:
                with job_span("submit to launcher", job.id, launch=job.launch_key):
                    return await self._submit(launcher, job)
            case Effect.CANCEL:
                with job_span("cancel at launcher", job.id, launch=job.launch_key):
                    await launcher.cancel(job.launch_key)
            case None:
                pass
        return job

    def _waits_for_turn(self, job: Job) -> bool:
        may_start = bool(job.sweep) and job.state is State.QUEUED
        return may_start and self._journal.sweeps.waits_for_turn(job)

    async def _planner(self, job: Job) -> JobPlanner | None:
        """The planner of a job over the market of this moment, for which clouds may be asked."""
        if self._planners is None or self._spec(job.id, job.spec_seq).holdfast.plan is None:
            return None
        spec = self._spec(job.id, job.spec_seq).with_limits(job.limits)
        return await self._planners.prepare(spec, self._clock.now())

    async def _submit(self, launcher: Launcher, job: Job) -> Job:
        try:
            await launcher.submit(self._launch(job))
        except LaunchRefused as refusal:
            # A refusal follows from the task alone: nothing runs under this key, and no retry can succeed.
            finished = Finished(at=self._clock.now(), outcome=Outcome.FAILED, detail=refusal.detail)
            return self._append(job, [finished])
        return job

    def _append(self, job: Job, events: Sequence[Event]) -> Job:
        """Append events, and admit waiting jobs to the room that the job leaves."""
        job = self._journal.append(job, events)
        if any(isinstance(event, Paused | Finished) for event in events):
            self._queue.wake()
        return job

    def _ingest_reports(self, job: Job) -> Job:
        reports = list(self._inbox.read_new(job.id, self._journal.marks(job.id)))
        for attempt, group in itertools.groupby(reports, key=lambda report: report.attempt):
            batch = list(group)
            try:
                self._journal.ingest(job.id, attempt, batch, oldest=batch[0].n)
            except BadReport as error:
                # A malformed report must not stop the reconciler from processing the job.
                log.warning("%s attempt %d: %s", job.id, attempt, error.detail)
        return self._with_worker_events(job) if reports else job

    def _with_worker_events(self, job: Job) -> Job:
        """The job with the events that its workers reported since it was read.

        Raises:
            StaleWrite: another writer changed the job, so the observation belongs to an older state.
        """
        for item in self._journal.events(job.id, after_seq=job.seq):
            if item.event.source not in CONCURRENT_SOURCES:
                raise StaleWrite()
            job = advance(job, item.event)
        return job

    def _launch(self, job: Job) -> Launch:
        """The request for the newest launch, with the limits of the time it was recorded.

        So a repeated request is identical.

        Raises:
            LaunchRefused: its task cannot be rendered, or its secrets cannot be read.
        """
        spec = self._planned_spec(job)
        asked = self._journal.submission(job.id)
        uploaded = self._uploads.folder(spec.workdir) if self._uploads else None
        sent = {"workdir": str(uploaded)} if uploaded else {}
        tasks = [{**task, **sent} for task in self._tasks(job, spec)]
        names = [group.name for group in spec.holdfast.groups]
        return Launch(
            key=job.launch_key,
            job_id=job.id,
            first_attempt=job.attempts_before_launch + 1,
            task=tasks[0],
            group_tasks=dict(zip(names, tasks, strict=True)) if names else {},
            max_failures=spec.holdfast.limits.max_failures,
            env={
                Env.JOB: job.id,
                Env.URL: self._worker_url,
                Env.TOKEN: self._tokens.for_worker(job.id),
            },
            secrets=self._secrets.open(job.id),
            folders=self._folders.of_job(
                asked.project, is_confined=asked.confined, uploaded=uploaded
            ),
        )

    def _planned_spec(self, job: Job) -> JobSpec:
        """The job as its newest launch asks for it.

        Raises:
            LaunchRefused: a place of the launch does not exist any more.
        """
        spec = self._spec(job.id, job.spec_seq).with_limits(job.launch_limits)
        try:
            return spec.with_placement(job.placement)
        except BadJobFile as error:
            raise LaunchRefused(error.detail) from error

    def _tasks(self, job: Job, spec: JobSpec) -> list[dict[str, Any]]:
        """The tasks as rendered at submission, one for each node group.

        They are rendered again if the launcher has to apply different limits, or a plan chooses the nodes.
        """
        if job.launch_limits is None and job.placement is None:
            return load_all(self._journal.submission(job.id).task)
        try:
            return load_all(render(spec).text)
        except BadJobFile as error:  # Another version accepted the job.
            raise LaunchRefused(error.detail) from error

    def _read_spec(self, job_id: str, _spec_seq: int) -> JobSpec:
        """The job file of an event. Limits may have been changed since."""
        return JobSpec.from_stored(self._journal.submission(job_id).spec)

    def _reconcile_context(self, job: Job) -> ReconcileContext:
        spec = self._spec(job.id, job.spec_seq).with_limits(job.limits)
        launcher = self._launchers.get(spec.engine)
        return ReconcileContext(
            limits=spec.holdfast.limits,
            has_store=spec.holdfast.checkpoint is not None,
            budgets=(*self._budget_balances(job), *self._sweep_balances(job)),
            waits_for_turn=(waits := self._waits_for_turn(job)),
            saves_on_cancel=launcher is None or launcher.saves_on_cancel,
            admission=None if waits else self._queue.admission(job),
            priority_pause=self._queue.priority_pause(job),
        )

    def _planned_context(self, job: Job) -> ReconcileContext:
        """The context of a decision without an observation."""
        context = self._reconcile_context(job)
        if self._planners is None or self._spec(job.id, job.spec_seq).holdfast.plan is None:
            return context
        spec = self._spec(job.id, job.spec_seq).with_limits(job.limits)
        return replace(context, planner=self._planners.of(spec, self._clock.now()))

    def _budget_balances(self, job: Job) -> tuple[BudgetBalance, ...]:
        """Balances of the budgets that pay for the job, cached for a few seconds.

        Also records their warnings.
        """
        now = self._clock.now()
        known = self._balances.get((job.project, job.owner))
        # A balance that would pause a job is read again: the budget may have been raised.
        is_blocked = known and any(
            balance.blocks_jobs(now, job.micros_per_hour) for balance in known[1]
        )
        if known and not is_blocked and now - known[0] < timedelta(seconds=BALANCE_TTL_S):
            return known[1]
        budgets = self._journal.budgets
        balances = budgets.balances_for(job.project, job.owner, now)
        for balance in balances:
            for percent in budgets.record_warnings(balance, now):
                log.warning("%s", balance.warning(percent, now))
        self._balances[job.project, job.owner] = now, balances
        return balances

    def _sweep_balances(self, job: Job) -> tuple[SweepBalance, ...]:
        """The balance of the job's sweep, cached like those of budgets; empty without a sweep."""
        if not job.sweep:
            return ()
        now = self._clock.now()
        known = self._sweeps.get(job.sweep)
        is_old = known is None or known.at + timedelta(seconds=BALANCE_TTL_S) <= now
        if known is None or is_old or known.of_job(job).blocks_jobs(now, job.micros_per_hour):
            known = self._sweeps[job.sweep] = self._journal.sweeps.balance(job.sweep, now)
        return (known.of_job(job),)

    def _launcher(self, engine: Engine) -> Launcher:
        if engine not in self._launchers:
            raise LauncherUnreachable(
                f"this service runs without the {launcher_name(engine)} launcher"
            )
        return self._launchers[engine]

    async def process(self, lease: Lease) -> None:
        """Run one step and schedule the next one.

        Errors are displayed to users but never change job state.
        """
        with log_context(job=lease.job_id):
            await self._process(lease)

    async def _process(self, lease: Lease) -> None:
        job_id, problem = lease.job_id, None
        # The time of the request: the response may lack events that happened after it.
        seen_at: datetime | None = self._clock.now()
        with suppress(StoreUnavailable):  # The job becomes due again when its lease expires.
            try:
                job = await self.step(job_id)
            except (StaleWrite, BudgetSpent):
                # The job or its budget changed after the observation: poll again at once.
                self._balances.clear()
                self._sweeps.clear()
                self._queue.clear()
                self._leases.make_due(job_id, self._clock.now())
                return
            except LauncherUnreachable as error:
                seen_at, problem = None, error.detail
                self._log_once(job_id, problem)
                job = self._journal.read(job_id)
            if problem is None:
                self._logged.pop(job_id, None)
            if job.sweep and job.state in {State.PAUSED, State.ENDED}:
                waiting = self._journal.sweeps.next_ids(job.sweep)
                self._leases.make_all_due(waiting, self._clock.now())
            if job.state is State.ENDED:
                self._leases.remove(job_id)
                self._secrets.forget(job_id)
                return
            self._leases.release(
                job_id,
                leased_until=lease.until,
                due_at=self._due_at(job, lease.engine),
                seen_at=None if job.state is State.PAUSED else seen_at,
                trouble=problem,
            )

    def _log_once(self, job_id: str, problem: str) -> None:
        """Log a poll error, unless it was the last one logged for the job."""
        if self._logged.get(job_id) != problem:
            self._logged[job_id] = problem
            log.warning("%s: %s", job_id, problem)

    def _job_count(self, engine: Engine) -> int:
        """Number of polled jobs of an engine, cached.

        They are only counted if the poll interval depends on it.
        """
        if not self._intervals.poll_cost_s.get(engine):
            return 1
        now = self._clock.now()
        at, count = self._job_counts.get(engine, (None, 0))
        if at is None or now - at >= timedelta(seconds=JOB_COUNT_TTL_S):
            count = self._leases.count(engine)
            self._job_counts[engine] = now, count
        return count

    def _due_at(self, job: Job, engine: Engine) -> datetime:
        """The latest time of the next poll: after the poll interval, or when a decision is due."""
        now = self._clock.now()
        if job.state is State.PAUSED:
            return now + timedelta(seconds=self._intervals.poll_paused_every_s)
        pause_s = self._intervals.interval_s(engine, self._job_count(engine))
        if self._waits_for_turn(job):  # The end of another job makes it due.
            return now + timedelta(seconds=max(pause_s, TURN_POLL_S))
        if job.state is State.QUEUED and self._queue.waits(job):
            pause_s = max(pause_s, POLL_WAITING_EVERY_S)
        within_ms = ms_until_decision(job, now, self._planned_context(job))
        if within_ms is not None:
            pause_s = min(pause_s, max(0, within_ms) / 1000)
        return now + timedelta(seconds=pause_s)
