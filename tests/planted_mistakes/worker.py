"""Mistakes in the worker outside of checkpoints: reports, notices, votes and data."""

from __future__ import annotations

from typing import Final

from planted_mistakes.mistake import Mistake

W: Final = "worker/holdfast_worker/"
CHECKPOINT: Final = "tests/worker/checkpoint/"
DATA: Final = "tests/worker/data/"

WORKER_MISTAKES: Final = (
    Mistake(
        name="unacknowledged-segment-removed",
        file=f"{W}protocol/spool_segments.py",
        old="later.first - 1 <= acknowledged.get(segment.attempt, 0)",
        new="segment.first <= acknowledged.get(segment.attempt, 0)",
        tests=("tests/worker/protocol/test_spool_segments.py",),
    ),
    Mistake(
        name="reports-of-others-acknowledge-own",
        file=f"{W}telemetry/delivery.py",
        old="= max(0, next_number - 1 - offset.before)",
        new="= max(0, next_number - 1)",
        tests=("tests/worker/telemetry/test_incarnation.py",),
    ),
    Mistake(
        name="lost-reports-not-sent-again",
        file=f"{W}telemetry/delivery.py",
        old="            if next_number != expected:\n                start = START\n            elif batch:",
        new="            if batch:",
        tests=("tests/worker/telemetry/test_spool.py",),
    ),
    Mistake(
        name="partial-line-continued",
        file=f"{W}telemetry/spool.py",
        old="        self._size_bytes = _truncate_partial_line(self._file)\n        self._has_partial_line = False\n        reports",
        new="        self._size_bytes = 0\n        self._has_partial_line = False\n        reports",
        tests=("tests/worker/telemetry/test_spool.py",),
    ),
    Mistake(
        name="notice-of-another-node",
        file=f"{W}preemption/clouds.py",
        old='if event.get("EventType") == "Preempt" and node in event.get("Resources", ())',
        new='if event.get("EventType") == "Preempt"',
        tests=("tests/worker/preemption/test_clouds.py",),
    ),
    Mistake(
        name="expired-metadata-token-kept",
        file=f"{W}preemption/clouds.py",
        old="if reply.status == 401:",
        new="if reply.status == 403:",
        tests=("tests/worker/preemption/test_clouds.py",),
    ),
    Mistake(
        name="deadline-moves-with-every-poll",
        file=f"{W}preemption/clouds.py",
        old="self._deadline = self._deadline or now() + self.NOTICE",
        new="self._deadline = now() + self.NOTICE",
        tests=("tests/worker/preemption/test_clouds.py",),
    ),
    Mistake(
        name="time-without-zone-is-local",
        file=f"{W}preemption/clouds.py",
        old="return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)",
        new="return moment.astimezone(UTC)",
        tests=("tests/worker/preemption/test_clouds.py",),
    ),
    Mistake(
        name="longest-deadline-of-all-ranks",
        file=f"{W}distributed/step_vote.py",
        old="NO_VALUE if self.left_s is None else -self.left_s,",
        new="NO_VALUE if self.left_s is None else self.left_s,",
        tests=(f"{CHECKPOINT}test_schedule.py",),
    ),
    Mistake(
        name="notice-discards-save-under-way",
        file=f"{W}distributed/step_vote.py",
        old="    if votes.is_busy:\n        return StepDecision.FINISH_AND_LEAVE\n",
        new="",
        tests=(f"{CHECKPOINT}test_schedule.py",),
    ),
    Mistake(
        name="final-save-that-cannot-finish",
        file=f"{W}distributed/step_vote.py",
        old="return votes.durable_s < DEADLINE_SAFETY * left_s",
        new="return votes.durable_s < left_s",
        tests=(f"{CHECKPOINT}test_schedule.py",),
    ),
    Mistake(
        name="diverged-models-saved",
        file=f"{W}distributed/step_vote.py",
        old="        return differ(self.norm, self.least_norm) or differ(\n",
        new="        return differ(self.norm, self.norm) or differ(\n",
        tests=(f"{CHECKPOINT}test_schedule.py",),
    ),
    Mistake(
        name="position-ignores-earlier-division",
        file=f"{W}data/sampling.py",
        old="return min(self.base + mine * self.replicas, self.order.length)",
        new="return min(mine * self.replicas, self.order.length)",
        tests=(f"{DATA}test_resumable_loader_world_size.py",),
    ),
    Mistake(
        name="incomplete-batch-ends-pass-early",
        file=f"{W}data/sampling.py",
        old="return taken >= whole + (1 if rest and not self.drops_batch else 0)",
        new="return taken >= whole",
        tests=(f"{DATA}test_resumable_loader_world_size.py",),
    ),
    Mistake(
        name="sampler-restarts-the-epoch",
        file=f"{W}data/exact_sampler.py",
        old="        self.consumed = consumed\n",
        new="",
        tests=(f"{DATA}test_sample_order.py",),
    ),
    Mistake(
        name="ranks-share-samples-after-resume",
        file=f"{W}data/sample_order.py",
        old="places = self._base + self._replica + turns * self._replicas",
        new="places = self._base + turns * self._replicas",
        tests=(f"{DATA}test_sample_order.py",),
    ),
    Mistake(
        name="new-ranks-draw-the-same-numbers",
        file=f"{W}data/position.py",
        old="    if rank >= len(former):\n",
        new="    if rank > len(former):\n",
        tests=(f"{DATA}test_resumable_loader_world_size.py",),
    ),
    Mistake(
        name="repeated-notice-extends-the-time",
        file=f"{W}preemption/notice.py",
        old="        if not self.is_raised:\n",
        new="        if self._is_exit_deferred:\n",
        tests=("tests/worker/preemption/test_notice.py",),
    ),
    Mistake(
        name="time-after-notice-does-not-pass",
        file=f"{W}preemption/notice.py",
        old="UNKNOWN_LEFT_S - (time.monotonic() - self._raised_s)",
        new="UNKNOWN_LEFT_S",
        tests=("tests/worker/preemption/test_notice.py",),
    ),
    Mistake(
        name="notice-before-first-step-ignored",
        file=f"{W}preemption/notice.py",
        old="if not self._is_exit_deferred:",
        new="if not self.is_raised:",
        tests=("tests/worker/preemption/test_notice.py",),
    ),
    Mistake(
        name="later-hint-ignored",
        file=f"{W}preemption/notice.py",
        old="self._is_hint_acknowledged or self.has_pending_hint()",
        new="True",
        tests=("tests/worker/preemption/test_notice.py",),
    ),
    Mistake(
        name="failure-at-one-step-repeated-forever",
        file=f"{W}watchdog/failure_cause.py",
        old="restarts = 0 if cause.step > self._furthest_step",
        new="restarts = 0 if cause.step >= self._furthest_step",
        tests=("tests/worker/node/test_restart.py",),
    ),
    Mistake(
        name="ranks-restart-although-a-node-refuses",
        file=f"{W}watchdog/watchdog.py",
        old="if not all(self._restart_votes.values()):",
        new="if not any(self._restart_votes.values()):",
        tests=("tests/worker/watchdog/test_consensus.py",),
    ),
    Mistake(
        name="terminating-rank-taken-for-a-running-one",
        file=f"{W}node/torchrun_agent.py",
        old='return "\\nVmSize:" in Path(f"/proc/{pid}/status").read_text()',
        new='return "\\nState:" in Path(f"/proc/{pid}/status").read_text()',
        tests=("tests/worker/node/test_torchrun_agent.py",),
    ),
    Mistake(
        name="aborted-sum-taken-for-a-complete-one",
        file=f"{W}distributed/nccl_group.py",
        old="on_end(not has_failed and not self._is_aborted)",
        new="on_end(not has_failed)",
        tests=("tests/worker/distributed/test_nccl_group.py",),
    ),
    Mistake(
        name="gpu-tensors-summed-over-gloo",
        file=f"{W}distributed/connected_group.py",
        old="if self._nccl and any(",
        new="if self._nccl and not any(",
        tests=("tests/worker/distributed/test_nccl_group.py",),
    ),
    Mistake(
        name="unserved-connection-stays-open",
        file=f"{W}watchdog/node_channel.py",
        old="connection.add_done_callback(lambda _: writer.close())",
        new="connection.add_done_callback(lambda _: None)",
        tests=("tests/worker/watchdog/test_node_channel.py",),
    ),
    Mistake(
        name="ranks-replaced-although-the-script-rules-it-out",
        file=f"{W}watchdog/replacement.py",
        old="            self._run_dir.can_replace_ranks()\n",
        new="            self._run_dir.has_trained()\n",
        tests=("tests/worker/watchdog/test_replacement.py",),
    ),
    Mistake(
        name="ddp-with-another-group-recovered",
        file=f"{W}recovery/run_state.py",
        old="ddp.process_group is not group",
        new="ddp.process_group is None",
        tests=("tests/worker/recovery/test_run_state.py",),
    ),
)
