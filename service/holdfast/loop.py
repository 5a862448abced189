"""The reconciler: claim, look, decide, record, act. The only place where clock, database and launchers meet.

A step takes no hint: a timer, a nudge and a restart after a crash all run the same code. Facts are recorded before
the one effect of a step; the effect is idempotent by its key, so that a crash in between is healed by looking.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.wire import Env

from holdfast.domain.events import Finished, Outcome, Source
from holdfast.domain.lifecycle import Job, State, advance
from holdfast.domain.reconcile import Effect, decide
from holdfast.domain.spec import Engine, JobSpec
from holdfast.errors import (
    BadReport,
    LauncherUnreachable,
    LaunchRefused,
    StaleWrite,
    StoreUnavailable,
)
from holdfast.ports import Clock, Launch, Launcher, ReportInbox
from holdfast.rendering import load
from holdfast.store.journal import Journal
from holdfast.store.tokens import Tokens
from holdfast.store.watches import Watches

log = logging.getLogger(__name__)

BATCH: Final = 64
"""Jobs that one replica looks at together. Smaller: a fleet waits for its turn. Bigger: more calls at once than
launchers can bear."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often the reconciler looks."""

    look_every_s: float = 1.0
    lease_s: float = 10.0


class Reconciler:
    """Moves every live job towards what its owner asked for."""

    def __init__(
        self,
        *,
        journal: Journal,
        watches: Watches,
        tokens: Tokens,
        launchers: Mapping[Engine, Launcher],
        inbox: ReportInbox,
        clock: Clock,
        pace: Pace,
        worker_url: str,
    ) -> None:
        self._journal = journal
        self._watches = watches
        self._tokens = tokens
        self._launchers = launchers
        self._inbox = inbox
        self._clock = clock
        self._pace = pace
        self._worker_url = worker_url

    async def sweep(self) -> int:
        """Take one step for every job that is due, and wait for all of them; how many there were."""
        claimed = self.claim(BATCH)
        await asyncio.gather(*map(self.watch, claimed))
        return len(claimed)

    def claim(self, limit: int) -> list[str]:
        """Jobs that are due, now leased to this replica.

        Raises:
            StoreUnavailable: the database cannot be used; nothing was leased.
        """
        return self._watches.claim(self._clock.now(), self._pace.lease_s, limit)

    async def step(self, job_id: str) -> Job:
        """The job after one look at it.

        Raises:
            LauncherUnreachable: nothing was seen, or nobody knows whether the effect took place.
            StaleWrite: another replica moved the job meanwhile; nothing was recorded here.
            StoreUnavailable: nothing was recorded, or the effect was not reached.
        """
        job = self._journal.read(job_id)
        if job.state is State.ENDED:
            return job
        launcher = self._launcher(job_id)
        seen = await launcher.look(job.launch_key) if job.launch else None
        # After the look: what a worker left behind before it ended is then known before its end is.
        job = self._take_reports(job)
        plan = decide(job, seen, self._clock.now())
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
        reports = list(self._inbox.take(job.id, self._journal.marks(job.id)))
        for attempt, batch in itertools.groupby(reports, key=lambda report: report.attempt):
            try:
                self._journal.absorb(job.id, attempt, batch)
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
            if item.event.source is not Source.WORKER:
                raise StaleWrite()
            job = advance(job, item.event)
        return job

    def _launch(self, job: Job) -> Launch:
        submission = self._journal.submission(job.id)
        spec = JobSpec.model_validate(submission.spec)
        return Launch(
            key=job.launch_key,
            job_id=job.id,
            first_attempt=job.attempts_before_launch + 1,
            task=load(submission.task),
            max_failures=spec.holdfast.limits.max_failures,
            env={
                Env.JOB: job.id,
                Env.URL: self._worker_url,
                Env.TOKEN: self._tokens.for_worker(job.id),
            },
        )

    def _launcher(self, job_id: str) -> Launcher:
        engine = JobSpec.model_validate(self._journal.submission(job_id).spec).engine
        if engine not in self._launchers:
            raise LauncherUnreachable(f"this service runs without the {engine} launcher")
        return self._launchers[engine]

    async def watch(self, job_id: str) -> None:
        """One step, and when to look again. What went wrong is shown to people, and concluded from by nobody."""
        seen_at: datetime | None = None
        trouble: str | None = None
        with suppress(StoreUnavailable):  # The lease brings the job back once the database does.
            try:
                job = await self.step(job_id)
            except StaleWrite:
                # Someone else moved this job between our look and our word: look again at once.
                self._watches.nudge(job_id, self._clock.now())
                return
            except LauncherUnreachable as error:
                trouble = error.detail
                log.warning("%s: %s", job_id, trouble)
            else:
                seen_at = self._clock.now()
                if job.state is State.ENDED:
                    self._watches.close(job_id)
                    return
            due_at = self._clock.now() + timedelta(seconds=self._pace.look_every_s)
            self._watches.release(job_id, due_at=due_at, seen_at=seen_at, trouble=trouble)


async def run(
    reconciler: Reconciler, nudged: asyncio.Event, stopped: asyncio.Event, pace: Pace
) -> None:
    """Watch what is due until `stopped`, at every tick of the pace and whenever `nudged`.

    A launcher that takes its time over one job holds up no other, and a bug that one job brings to light stops none.
    """
    under_way: dict[str, asyncio.Task[None]] = {}

    def forget(job_id: str, task: asyncio.Task[None]) -> None:
        del under_way[job_id]
        if error := task.exception():
            log.error("%s: a bug; its lease brings it back", job_id, exc_info=error)

    while not stopped.is_set():
        nudged.clear()
        claimed: list[str] = []
        try:
            claimed = reconciler.claim(BATCH - len(under_way))
        except StoreUnavailable as error:
            log.error("%s", error.detail)  # noqa: TRY400 - the sentence says all
        for job_id in claimed:
            if job_id not in under_way:  # A step may outlast its lease.
                under_way[job_id] = task = asyncio.create_task(reconciler.watch(job_id))
                task.add_done_callback(functools.partial(forget, job_id))
        with suppress(TimeoutError):
            await asyncio.wait_for(nudged.wait(), timeout=pace.look_every_s / 2)
    await asyncio.gather(*under_way.values(), return_exceptions=True)
