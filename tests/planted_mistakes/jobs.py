"""Mistakes in the state of jobs: decisions, events, leases, reports and launch tokens."""

from __future__ import annotations

from typing import Final

from planted_mistakes.mistake import Mistake

S: Final = "service/holdfast/"
JOBS: Final = "tests/domain/jobs/"

JOB_MISTAKES: Final = (
    Mistake(
        name="unknown-launch-resubmitted-after-denials",
        file=f"{S}domain/jobs/reconcile.py",
        old="case LaunchStatus.ABSENT if job.placements == 0 and job.denials == 0:",
        new="case LaunchStatus.ABSENT if job.placements == 0:",
        tests=(f"{JOBS}test_reconcile.py",),
    ),
    Mistake(
        name="job-stopped-by-guard-counts-as-cancelled",
        file=f"{S}domain/jobs/reconcile.py",
        old="outcome = Outcome.FAILED if job.tripped else Outcome.CANCELLED",
        new="outcome = Outcome.CANCELLED",
        tests=(f"{JOBS}test_reconcile_stopping.py",),
    ),
    Mistake(
        name="launch-beside-an-unknown-one",
        file=f"{S}domain/jobs/reconcile.py",
        old="case LaunchStatus.ABSENT | LaunchStatus.FORGOTTEN:",
        new="case LaunchStatus.ABSENT | LaunchStatus.FORGOTTEN | LaunchStatus.UNKNOWN:",
        tests=(f"{JOBS}test_reconcile.py",),
    ),
    Mistake(
        name="stopping-job-submitted",
        file=f"{S}domain/jobs/reconcile.py",
        old="Effect.CANCEL if job.is_leaving else Effect.SUBMIT",
        new="Effect.SUBMIT",
        tests=(f"{JOBS}test_reconcile.py",),
    ),
    Mistake(
        name="lost-launches-counted-before-resume",
        file=f"{S}domain/jobs/reconcile.py",
        old="if job.launch - job.launches_before_resume >= MAX_LAUNCHES:",
        new="if job.launch >= MAX_LAUNCHES:",
        tests=(f"{JOBS}test_reconcile_stopping.py",),
    ),
    Mistake(
        name="guard-trips-on-ended-launch",
        file=f"{S}domain/jobs/reconcile.py",
        old="if not over and (tripped :=",
        new="if (tripped :=",
        tests=(f"{JOBS}test_reconcile_stopping.py",),
    ),
    Mistake(
        name="success-during-pause-becomes-pause",
        file=f"{S}domain/jobs/reconcile.py",
        old="if outcome is not Outcome.CANCELLED:",
        new="if outcome is Outcome.FAILED:",
        tests=(f"{JOBS}test_reconcile_stopping.py",),
    ),
    Mistake(
        name="loss-without-notice-is-preemption",
        file=f"{S}domain/jobs/reconcile.py",
        old="Cause.PREEMPTED if attempt in job.noticed and not is_explained else Cause.NODE_FAILED",
        new="Cause.PREEMPTED",
        tests=(f"{JOBS}test_reconcile.py",),
    ),
    Mistake(
        name="resume-keeps-attempts-without-progress",
        file=f"{S}domain/jobs/lifecycle.py",
        old="        advanced_attempt=job.attempt,\n",
        new="",
        tests=(f"{JOBS}test_guards.py",),
    ),
    Mistake(
        name="late-start-moves-newer-attempt-back",
        file=f"{S}domain/jobs/lifecycle.py",
        old="            if not current:\n                return job\n",
        new="",
        tests=(f"{JOBS}test_late_events.py",),
    ),
    Mistake(
        name="late-exit-replaces-newer-reason",
        file=f"{S}domain/jobs/lifecycle.py",
        old="event.exited_early and attempt >= job.left_attempt:",
        new="event.exited_early:",
        tests=(f"{JOBS}test_late_events.py",),
    ),
    Mistake(
        name="cancel-extends-time-to-save",
        file=f"{S}domain/jobs/lifecycle.py",
        old="(job.stop_asked_at if job.is_leaving else None) or event.at",
        new="event.at",
        tests=(f"{JOBS}test_lifecycle_pauses.py",),
    ),
    Mistake(
        name="cost-guard-reserves-nothing-for-saving",
        file=f"{S}domain/jobs/guards.py",
        old="if cap is not None and paid + grace_micros(account.micros_per_hour) >= cap:",
        new="if cap is not None and paid >= cap:",
        tests=(f"{JOBS}test_guards.py",),
    ),
    Mistake(
        name="launch-before-its-event-is-recorded",
        file=f"{S}controller/reconciler.py",
        old="        job = self._journal.append(job, plan.record)\n        match",
        new=(
            "        if plan.effect is Effect.SUBMIT:\n"
            "            await launcher.submit(self._launch(functools.reduce(advance, plan.record, job)))\n"
            "        job = self._journal.append(job, plan.record)\n        match"
        ),
        tests=("tests/controller/test_reconciler.py",),
    ),
    Mistake(
        name="observation-of-older-state-is-used",
        file=f"{S}controller/reconciler.py",
        old="CONCURRENT_SOURCES: Final = frozenset({Source.WORKER, Source.JANITOR})",
        new="CONCURRENT_SOURCES: Final = frozenset(Source)",
        tests=("tests/controller/test_reconciler.py",),
    ),
    Mistake(
        name="observation-dated-by-its-end",
        file=f"{S}controller/reconciler.py",
        old="seen_at=None if job.state is State.PAUSED else seen_at,",
        new="seen_at=None if job.state is State.PAUSED else seen_at and self._clock.now(),",
        tests=("tests/controller/test_reconciler.py",),
    ),
    Mistake(
        name="repeated-launch-with-other-limits",
        file=f"{S}domain/jobs/lifecycle.py",
        old="                launch_limits=job.limits,\n",
        new="",
        tests=(f"{JOBS}test_lifecycle_pauses.py",),
    ),
    Mistake(
        name="denials-recorded-twice",
        file=f"{S}domain/jobs/reconcile.py",
        old="denials = list(seen.denials[job.denials :])",
        new="denials = list(seen.denials)",
        tests=(f"{JOBS}test_reconcile.py",),
    ),
    Mistake(
        name="different-crashes-count-as-same",
        file=f"{S}domain/jobs/crash_loop.py",
        old="crashes.count + 1 if likeness == crashes.likeness else 1",
        new="crashes.count + 1",
        tests=(f"{JOBS}test_crash_loop.py",),
    ),
    Mistake(
        name="cancelled-slurm-launch-never-ends",
        file=f"{S}launchers/slurm/recovery.py",
        old='if cancelled := state.facts.get("cancelled"):',
        new='if (cancelled := state.facts.get("cancelled")) and state.job:',
        tests=("tests/launchers/slurm/test_recovery.py",),
    ),
    Mistake(
        name="suspended-slurm-job-requeued",
        file=f"{S}launchers/slurm/recovery.py",
        old=" and not state.job.was_suspended:",
        new=":",
        tests=("tests/launchers/slurm/test_recovery.py",),
    ),
    Mistake(
        name="ended-job-with-nodes-removed",
        file=f"{S}store/job_removal.py",
        old="if why := removal_refusal(job):",
        new="if not job.outcome and (why := removal_refusal(job)):",
        tests=("tests/store/test_job_removal.py",),
    ),
    Mistake(
        name="local-launch-started-after-a-wait-for-the-lock",
        file=f"{S}launchers/local/submission.py",
        old="            if _is_started_or_cancelled(folder):\n                return\n            _prepare",
        new="            _prepare",
        tests=("tests/launchers/local/test_submission.py",),
    ),
    Mistake(
        name="cancelled-local-launch-started",
        file=f"{S}launchers/local/submission.py",
        old="return folder.cancelled_at() is not None or has_started(folder.history.read())",
        new="return has_started(folder.history.read())",
        tests=("tests/launchers/local/test_submission.py",),
    ),
    Mistake(
        name="lock-of-local-launch-ignored",
        file=f"{S}launchers/local/launch_dir.py",
        old="    except BlockingIOError:\n        os.close(holder)\n        return None\n    return holder",
        new="    except BlockingIOError:\n        pass\n    return holder",
        tests=("tests/launchers/local/test_submission.py",),
    ),
    Mistake(
        name="node-changes-recorded-again",
        file=f"{S}domain/jobs/reconcile.py",
        old="for change in placement.node_changes[recorded:]:",
        new="for change in placement.node_changes:",
        tests=(f"{JOBS}test_node_changes.py",),
    ),
    Mistake(
        name="lost-node-counted-again-with-its-attempt",
        file=f"{S}domain/jobs/lifecycle.py",
        old="event.cause in PREEMPTION_CAUSES and not job.counted_nodes",
        new="event.cause in PREEMPTION_CAUSES",
        tests=(f"{JOBS}test_node_changes.py",),
    ),
    Mistake(
        name="running-cost-includes-lost-nodes",
        file=f"{S}domain/jobs/node_changes.py",
        old="event.attempt, event.group, event.at, event.micros_per_hour\n        ),\n    )",
        new="event.attempt, event.group, event.at, job.micros_per_hour\n        ),\n    )",
        tests=(f"{JOBS}test_node_changes.py",),
    ),
    Mistake(
        name="replaced-node-ends-degraded-state",
        file=f"{S}domain/jobs/node_changes.py",
        old="    changed = replace(\n        changed,\n        lost_nodes=",
        new="    changed = replace(\n        changed,\n        hosting=tuple(n for n in job.hosting if n in missing),\n        lost_nodes=",
        tests=(f"{JOBS}test_degraded.py",),
    ),
    Mistake(
        name="next-attempt-inherits-hosted-nodes",
        file=f"{S}domain/jobs/job.py",
        old="if self.placed and self.hosting_attempt == self.attempt else ()",
        new="if self.placed else ()",
        tests=(f"{JOBS}test_degraded.py",),
    ),
    Mistake(
        name="loss-after-hosting-is-the-same-preemption",
        file=f"{S}domain/jobs/job.py",
        old="tuple(node for node in self.awaited_nodes if node in self.preempted_nodes)",
        new="self.preempted_nodes",
        tests=(f"{JOBS}test_degraded.py",),
    ),
    Mistake(
        name="minimum-of-nodes-is-not-launched",
        file=f"{S}rendering/task.py",
        old="envs[Env.MIN_NODES.value] = str(spec.min_nodes)",
        new="pass",
        tests=("tests/rendering/test_task.py",),
    ),
)

STORE_MISTAKES: Final = (
    Mistake(
        name="append-without-expected-number",
        file=f"{S}store/event_log.py",
        old="write(connection, job.id, events, first_seq=job.seq + 1, now=now)",
        new="write(connection, job.id, events, first_seq=read(connection, job.id).seq + 1, now=now)",
        tests=("tests/store/test_journal.py",),
    ),
    Mistake(
        name="rebuilt-row-overwrites-newer-one",
        file=f"{S}store/journal.py",
        old=".where(jobs.c.id == job_id, jobs.c.seq <= job.seq)",
        new=".where(jobs.c.id == job_id)",
        tests=("tests/store/test_fold_cache.py",),
    ),
    Mistake(
        name="row-of-newer-version-is-used",
        file=f"{S}store/event_log.py",
        old="return row.get(_VERSION) != FOLD",
        new="return row.get(_VERSION, 0) < FOLD",
        tests=("tests/store/test_fold_cache.py",),
    ),
    Mistake(
        name="lease-without-duration",
        file=f"{S}store/leases.py",
        old="values(due_at=until)",
        new="values(due_at=now)",
        tests=("tests/store/test_leases.py",),
    ),
    Mistake(
        name="leased-job-claimed-again",
        file=f"{S}store/leases.py",
        old="                watches.c.due_at <= now,\n",
        new="",
        tests=("tests/store/test_leases.py",),
    ),
    Mistake(
        name="release-of-another-replicas-lease",
        file=f"{S}store/leases.py",
        old="connection.execute(mine.where(unmoved).values(due_at=due_at))",
        new="connection.execute(mine.values(due_at=due_at))",
        tests=("tests/store/test_leases.py",),
    ),
    Mistake(
        name="replaced-worker-still-reports",
        file=f"{S}store/incarnations.py",
        old="    if mine != newest:",
        new="    if mine > (newest or 0):",
        tests=("tests/store/test_incarnations.py",),
    ),
    Mistake(
        name="worker-registered-before-observation",
        file=f"{S}store/incarnations.py",
        old="return seen_at is not None and seen_at > since",
        new="return seen_at is not None",
        tests=("tests/store/test_incarnations.py",),
    ),
    Mistake(
        name="reports-after-a-gap-recorded",
        file=f"{S}store/report_ingest.py",
        old="if report.n != last + 1:",
        new="if report.n <= last:",
        tests=("tests/store/test_report_ingest.py",),
    ),
    Mistake(
        name="late-reports-by-launcher-clock",
        file=f"{S}store/report_ingest.py",
        old="func.min(job_events.c.recorded_at)",
        new="func.min(job_events.c.at)",
        tests=("tests/store/test_report_batches.py",),
    ),
    Mistake(
        name="late-points-leave-bill-unchanged",
        file=f"{S}store/report_ingest.py",
        old="for job_id, _ in self.marks if self._has_ended(job_id)}",
        new="for job_id, _ in self.marks if not self._has_ended(job_id)}",
        tests=("tests/store/billing/test_bills.py",),
    ),
    Mistake(
        name="cancelled-launch-is-posted",
        file=f"{S}store/launches.py",
        old="            launches.c.cancelled_at.is_(None),\n            launches.c.posted_at",
        new="            launches.c.posted_at",
        tests=("tests/store/test_launches.py",),
    ),
    Mistake(
        name="queued-job-starts-unobserved",
        file=f"{S}launchers/skypilot/cached_reads.py",
        old="if self._queued.get(key) == job:",
        new="if key in self._queued:",
        tests=("tests/launchers/skypilot/test_event_cache.py",),
    ),
    Mistake(
        name="launch-token-passes-twice",
        file=f"{S}store/launches.py",
        old=(
            "                launches.c.state == TokenState.ISSUED.value,\n"
            "            )\n            .values(state=TokenState.CONSUMED"
        ),
        new=(
            "                launches.c.state != TokenState.REVOKED.value,\n"
            "            )\n            .values(state=TokenState.CONSUMED"
        ),
        tests=("tests/store/test_launches.py",),
    ),
    Mistake(
        name="launch-token-of-older-generation-passes",
        file=f"{S}store/launches.py",
        old='                launches.c.generation == int(match["generation"]),\n',
        new="",
        tests=("tests/store/test_launches.py",),
    ),
    Mistake(
        name="renewed-launch-keeps-engine-id",
        file=f"{S}store/launches.py",
        old='            "engine_id": None,\n',
        new="",
        tests=("tests/store/test_launches.py",),
    ),
    Mistake(
        name="restart-of-ranks-is-no-failure",
        file=f"{S}domain/jobs/lifecycle.py",
        old="crashes, failures = job.crashes.after_restart(event), job.failures + 1",
        new="crashes, failures = job.crashes.after_restart(event), job.failures",
        tests=("tests/domain/jobs/test_crash_loop.py",),
    ),
    Mistake(
        name="request-after-a-preemption-makes-it-a-drill",
        file=f"{S}domain/jobs/drills.py",
        old="return is_same_node and is_in_time and drill.at <= loss.at",
        new="return is_same_node and is_in_time",
        tests=(f"{JOBS}test_drills.py",),
    ),
    Mistake(
        name="short-notice-is-long-enough-to-save",
        file=f"{S}domain/jobs/drills.py",
        old="(notice_s and notice_s >= saving_s)",
        new="notice_s",
        tests=(f"{JOBS}test_drills.py",),
    ),
    Mistake(
        name="next-worker-leaves-for-the-drill-of-the-last",
        file=f"{S}domain/jobs/drills.py",
        old="if drill.leave_at and drill.leaving_attempt == attempt and drill.leave_at > now",
        new="if drill.leave_at and drill.leave_at > now",
        tests=("tests/api/test_drills.py",),
    ),
)
