"""The reconciler: claim, look, decide, record, act. The only place where clock, database and launchers meet.

A step takes no hint: a timer, a nudge and a restart after a crash all run the same code. Facts are recorded before
the one effect of a step; the effect is idempotent by its key, so that a crash in between is healed by looking.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.code_upload.upload_store import Uploads
from holdfast.controller.limit_enforcement import Overdue, hold_on
from holdfast.controller.orphan_cleanup import OrphanCleaner, sweep_now_and_then
from holdfast.domain.budgets import BudgetBalance
from holdfast.domain.events import Finished, Outcome, Source
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance
from holdfast.domain.jobs.reconcile import Effect, ReconcileContext, decide, ms_until_decision
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
from holdfast.ports import Clock, Launch, Launcher, ReportInbox, SecretStore
from holdfast.rendering import load, render
from holdfast.store.identity.service_tokens import Tokens
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable

log = logging.getLogger(__name__)

BATCH: Final = 64
"""Jobs of one engine that one replica looks at together. Smaller: a fleet waits for its turn. Bigger: more calls at once
than a launcher can bear."""
SPECS_IN_MIND: Final = 4096
"""Jobs whose file is not read again for every look. Smaller than a fleet: each is parsed each time. Bigger: memory."""


PURSE_S: Final = 5.0
"""How long it is believed what is spent of a budget, its standing nodes reckoned on. Smaller counts a fleet's jobs for each of
them; bigger lets nodes that have come meanwhile be paid for unseen."""

CROWD_S: Final = 5.0
"""How long a count of the watched jobs is believed. A lower value counts a fleet more often; a higher value looks too often at a fleet
that has just grown."""

UNSEEN: Final = frozenset({Source.WORKER, Source.JANITOR})
"""Who may write to a job while somebody looks at its launcher: what they tell takes nothing from what is seen there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PollIntervals:
    """How often the reconciler looks."""

    look_every_s: float = 1.0
    by_engine: Mapping[Engine, float] = field(default_factory=dict)
    """How often, in seconds, where another pace suits the launcher."""
    each_s: Mapping[Engine, float] = field(default_factory=dict)
    """What one look costs a launcher, in seconds of its time: with many jobs each is looked at less often. A launcher
    that nudges when something happens loses nothing by it."""
    lease_s: float = 10.0
    paused_look_s: float = 60.0
    """How often a paused job is read, should the nudge of its resume be lost. Smaller reads for nothing; bigger lets it wait."""
    sweep_every_s: float = 60.0
    """How often launchers look for what was left behind."""

    def of(self, engine: Engine, watched: int = 1) -> float:
        """Seconds between two looks at a job of this engine that nobody nudges, while it has so many of them."""
        least_s = self.by_engine.get(engine, self.look_every_s)
        return max(least_s, self.each_s.get(engine, 0.0) * watched)


@dataclass(frozen=True, slots=True)
class Lease:
    """A job that is this replica's for now."""

    job_id: str
    engine: Engine
    until: datetime


class Reconciler:
    """Moves every live job towards what its owner asked for."""

    def __init__(
        self,
        *,
        journal: Journal,
        watches: LeaseTable,
        tokens: Tokens,
        launchers: Mapping[Engine, Launcher],
        inbox: ReportInbox,
        clock: Clock,
        pace: PollIntervals,
        worker_url: str,
        safe: SecretStore,
        folders: Folders = Folders(),
        uploads: Uploads | None = None,
    ) -> None:
        self._journal = journal
        self._watches = watches
        self._tokens = tokens
        self._launchers = launchers
        self._inbox = inbox
        self._clock = clock
        self._pace = pace
        self._worker_url = worker_url
        self._safe = safe
        self._folders = folders
        self._uploads = uploads
        self._spec = functools.lru_cache(SPECS_IN_MIND)(self._read_spec)
        self._crowds: dict[Engine, tuple[datetime, int]] = {}
        self._counted: dict[tuple[str, str], tuple[datetime, tuple[BudgetBalance, ...]]] = {}
        self._noted: dict[str, str] = {}
        """The newest trouble with a look that was logged, by job."""
        self.sweeper = OrphanCleaner(journal=journal, launchers=launchers, clock=clock)
        self.overdue = Overdue(
            journal=journal,
            watches=watches,
            clock=clock,
            terms=self._terms,
            lease_s=pace.lease_s,
        )

    async def sweep(self) -> int:
        """Take one step for every job that is due, and wait for all of them; how many there were."""
        claimed = self.claim()
        await asyncio.gather(*map(self.process, claimed))
        return len(claimed)

    def claim(self, under_way: Collection[Lease] = ()) -> list[Lease]:
        """Jobs that are due, now leased to this replica; none of those `under_way`, which take up room of their engines.

        Raises:
            StoreUnavailable: the database cannot be used; what was leased comes back with its lease.
        """
        now, lease_s = self._clock.now(), self._pace.lease_s
        until = now + timedelta(seconds=lease_s)
        busy = Counter(lease.engine for lease in under_way)
        without = {lease.job_id for lease in under_way}
        return [
            Lease(job_id, engine, until)
            for engine in Engine
            for job_id in self._watches.claim(engine, now, lease_s, BATCH - busy[engine], without)
        ]

    async def step(self, job_id: str) -> Job:
        """The job after one look at it.

        Raises:
            LauncherUnreachable: nothing was seen, or nobody knows whether the effect took place.
            StaleWrite: another replica moved the job meanwhile; nothing was recorded here.
            StoreUnavailable: nothing was recorded, or the effect was not reached.
        """
        job = self._journal.read(job_id)
        if job.state in {State.PAUSED, State.ENDED}:
            return job
        try:
            launcher = self._launcher(self._spec(job_id).engine)
            seen = await launcher.look(job.launch_key) if job.is_launched else None
        except LauncherUnreachable:
            self.overdue.hold(job_id)
            raise
        # After the look: what a worker left behind before it ended is then known before its end is.
        job = self._take_reports(job)
        plan = decide(job, seen, self._clock.now(), self._terms(job))
        job = self._journal.append(job, plan.record)
        match plan.effect:
            case Effect.SUBMIT:
                return await self._submit(launcher, job)
            case Effect.CANCEL:
                await launcher.cancel(job.launch_key)
            case None:
                pass
        return job

    async def _submit(self, launcher: Launcher, job: Job) -> Job:
        try:
            await launcher.submit(self._launch(job))
        except LaunchRefused as refusal:
            # A refusal follows from the task alone, so nothing stands under this key and nothing ever will.
            finished = Finished(at=self._clock.now(), outcome=Outcome.FAILED, detail=refusal.detail)
            return self._journal.append(job, [finished])
        return job

    def _take_reports(self, job: Job) -> Job:
        reports = list(self._inbox.read_new(job.id, self._journal.marks(job.id)))
        for attempt, group in itertools.groupby(reports, key=lambda report: report.attempt):
            batch = list(group)
            try:
                self._journal.absorb(job.id, attempt, batch, oldest=batch[0].n)
            except BadReport as error:
                # A worker that speaks nonsense must not keep its job from being watched.
                log.warning("%s attempt %d: %s", job.id, attempt, error.detail)
        return self._caught_up(job) if reports else job

    def _caught_up(self, job: Job) -> Job:
        """The job with what its workers told since it was read.

        Raises:
            StaleWrite: somebody else wrote to it, too: what was seen of it belongs to an older story.
        """
        for item in self._journal.events(job.id, after_seq=job.seq):
            if item.event.source not in UNSEEN:
                raise StaleWrite()
            job = advance(job, item.event)
        return job

    def _launch(self, job: Job) -> Launch:
        """The order for the newest launch, by the limits that held when it was asked for: a repeat is the same.

        Raises:
            LaunchRefused: nothing can be rendered for it, or its secrets cannot be read.
        """
        spec = self._spec(job.id).with_limits(job.launch_limits)
        asked = self._journal.submission(job.id)
        uploaded = self._uploads.folder(spec.workdir) if self._uploads else None
        task = self._task(job, spec)
        return Launch(
            key=job.launch_key,
            job_id=job.id,
            first_attempt=job.attempts_before_launch + 1,
            task={**task, "workdir": str(uploaded)} if uploaded else task,
            max_failures=spec.holdfast.limits.max_failures,
            env={
                Env.JOB: job.id,
                Env.URL: self._worker_url,
                Env.TOKEN: self._tokens.for_worker(job.id),
            },
            secrets=self._safe.open(job.id),
            folders=self._folders.of_job(
                asked.project, is_confined=asked.confined, uploaded=uploaded
            ),
        )

    def _task(self, job: Job, spec: JobSpec) -> Mapping[str, Any]:
        """The task as it was rendered, or rendered anew where the launcher itself is to keep to other limits."""
        if job.launch_limits is None:
            return load(self._journal.submission(job.id).task)
        try:
            return load(render(spec).text)
        except BadJobFile as flaw:  # Another version has taken the job.
            raise LaunchRefused(flaw.detail) from flaw

    def _read_spec(self, job_id: str) -> JobSpec:
        """What was asked for; it never changes. The limits of it may have been changed since."""
        return JobSpec.stored(self._journal.submission(job_id).spec)

    def _terms(self, job: Job) -> ReconcileContext:
        spec = self._spec(job.id).with_limits(job.limits)
        launcher = self._launchers.get(spec.engine)
        return ReconcileContext(
            limits=spec.holdfast.limits,
            has_store=spec.holdfast.checkpoint is not None,
            purses=self._purses(job),
            saves_on_cancel=launcher is None or launcher.saves_on_cancel,
        )

    def _purses(self, job: Job) -> tuple[BudgetBalance, ...]:
        """What the job is paid from, counted anew now and then; and whoever should be warned of it is."""
        now = self._clock.now()
        known = self._counted.get((job.project, job.owner))
        # What would pause a job is counted anew: the budget may have been raised meanwhile.
        held = known and any(purse.holds_back(now, job.micros_per_hour) for purse in known[1])
        if known and not held and now - known[0] < timedelta(seconds=PURSE_S):
            return known[1]
        budgets = self._journal.budgets
        purses = budgets.of(job.project, job.owner, now)
        for purse in purses:
            for percent in budgets.warn(purse, now):
                log.warning("%s", purse.warning(percent, now))
        self._counted[job.project, job.owner] = now, purses
        return purses

    def _launcher(self, engine: Engine) -> Launcher:
        if engine not in self._launchers:
            raise LauncherUnreachable(f"this service runs without the {engine} launcher")
        return self._launchers[engine]

    async def process(self, lease: Lease) -> None:
        """One step, and when to look again. What went wrong is shown to people, and concluded from by nobody."""
        job_id, trouble = lease.job_id, None
        # Not when the answer came: what happened while it was on its way may not be in it.
        seen_at: datetime | None = self._clock.now()
        with suppress(StoreUnavailable):  # The lease brings the job back once the database does.
            try:
                job = await self.step(job_id)
            except (StaleWrite, BudgetSpent):
                # Someone else moved this job between our look and our word, or has spent its money: look again at once.
                self._counted.clear()
                self._watches.nudge(job_id, self._clock.now())
                return
            except LauncherUnreachable as error:
                seen_at, trouble = None, error.detail
                self._note(job_id, trouble)
                job = self._journal.read(job_id)
            if trouble is None:
                self._noted.pop(job_id, None)
            if job.state is State.ENDED:
                self._watches.remove(job_id)
                self._safe.forget(job_id)
                return
            self._watches.release(
                job_id,
                leased_until=lease.until,
                due_at=self._due_at(job, lease.engine),
                seen_at=None if job.state is State.PAUSED else seen_at,
                trouble=trouble,
            )

    def _note(self, job_id: str, trouble: str) -> None:
        """Log the trouble with looking at a job, unless that was the last thing logged for it."""
        if self._noted.get(job_id) != trouble:
            self._noted[job_id] = trouble
            log.warning("%s: %s", job_id, trouble)

    def _crowd(self, engine: Engine) -> int:
        """How many jobs of an engine are watched, as counted a moment ago; only where the pace depends on it."""
        if not self._pace.each_s.get(engine):
            return 1
        now = self._clock.now()
        at, count = self._crowds.get(engine, (None, 0))
        if at is None or now - at >= timedelta(seconds=CROWD_S):
            count = self._watches.count(engine)
            self._crowds[engine] = now, count
        return count

    def _due_at(self, job: Job, engine: Engine) -> datetime:
        """When to look again, at the latest: in its turn, or once something is to be decided."""
        now = self._clock.now()
        if job.state is State.PAUSED:
            return now + timedelta(seconds=self._pace.paused_look_s)
        pause_s = self._pace.of(engine, self._crowd(engine))
        within_ms = ms_until_decision(job, now, self._terms(job))
        if within_ms is not None:
            pause_s = min(pause_s, max(0, within_ms) / 1000)
        return now + timedelta(seconds=pause_s)


async def run(
    reconciler: Reconciler, nudged: asyncio.Event, stopped: asyncio.Event, pace: PollIntervals
) -> None:
    """Watch what is due until `stopped`, at every tick of the pace and whenever `nudged`.

    A launcher that takes its time over its jobs holds up none of another launcher, nor, before a whole batch of them,
    any of its own; and a bug that one job brings to light stops none.
    """
    under_way: dict[Lease, asyncio.Task[None]] = {}

    def forget(lease: Lease, task: asyncio.Task[None]) -> None:
        del under_way[lease]
        if error := task.exception():
            log.error("%s: a bug; its lease brings it back", lease.job_id, exc_info=error)

    beside = (
        sweep_now_and_then(reconciler.sweeper, pace.sweep_every_s),
        hold_on(reconciler.overdue),
    )
    tasks = [asyncio.create_task(work) for work in beside]
    while not stopped.is_set():
        nudged.clear()
        claimed: list[Lease] = []
        try:
            # A step may outlast its lease; nobody looks twice at once. A nudge that comes meanwhile waits for its turn.
            claimed = reconciler.claim(under_way)
        except StoreUnavailable as error:
            log.error("%s", error.detail)  # noqa: TRY400 - the sentence says all
        for lease in claimed:
            under_way[lease] = task = asyncio.create_task(reconciler.process(lease))
            task.add_done_callback(functools.partial(forget, lease))
        with suppress(TimeoutError):
            await asyncio.wait_for(nudged.wait(), timeout=pace.look_every_s / 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, *under_way.values(), return_exceptions=True)
