"""Mistakes in the worker."""

from __future__ import annotations

from typing import Final

from planted_mistakes.mistake import Mistake

W: Final = "worker/holdfast_worker/"
CHECKPOINT: Final = "tests/worker/checkpoint/"
DATA: Final = "tests/worker/data/"

CHECKPOINT_MISTAKES: Final = (
    Mistake(
        name="shard-metadata-checked-by-size",
        file=f"{W}checkpoint/repository.py",
        old="if Digest.from_bytes(data) != commit.records[rank]:",
        new="if len(data) != commit.records[rank].size:",
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="own-digest-of-commit-not-checked",
        file=f"{W}checkpoint/metadata.py",
        old='if body.pop("sha256") != commit_digest(body):',
        new='if not body.pop("sha256"):',
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="digest-of-part-not-checked",
        file=f"{W}checkpoint/repository.py",
        old="if value != stream.parts[part.number]:",
        new="if False:",
        tests=(f"{CHECKPOINT}test_corruption.py",),
    ),
    Mistake(
        name="size-of-part-not-checked",
        file=f"{W}checkpoint/repository.py",
        old="if size != end - begin:",
        new="if size > end - begin:",
        equivalent="a part of another size has another checksum; only the message differs",
    ),
    Mistake(
        name="shard-metadata-before-its-bytes",
        file=f"{W}checkpoint/repository.py",
        old="        send = partial(self._send, name, snapshot, pace)\n",
        new=(
            "        self._store.put(name.record_key(snapshot.rank), b'{}')\n"
            "        send = partial(self._send, name, snapshot, pace)\n"
        ),
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="pointer-before-commit",
        file=f"{W}checkpoint/writer.py",
        old="                staged_at = to_iso(snapshot.staged_at)\n",
        new=(
            "                self._repository.pointer.advance(name, until_s)\n"
            "                staged_at = to_iso(snapshot.staged_at)\n"
        ),
        equivalent="a pointer to a missing commit is replaced and ignored; fencing compares committed ones only",
    ),
    Mistake(
        name="fenced-out-attempt-commits",
        file=f"{W}checkpoint/writer.py",
        old="                self._repository.tokens.check(name.epoch, until_s)\n                staged_at",
        new="                staged_at",
        tests=(f"{CHECKPOINT}test_fencing.py",),
    ),
    Mistake(
        name="commit-overwrites-another",
        file=f"{W}checkpoint/repository.py",
        old="retry_until(lambda: self._store.put_if_absent(name.commit_key, data), until_s)",
        new="retry_until(lambda: self._store.put(name.commit_key, data), until_s)",
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="ranks-with-different-state-commit",
        file=f"{W}checkpoint/repository.py",
        old="        if unlike:\n",
        new="        if unlike and False:\n",
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="worker-deletes-newest-checkpoint",
        file=f"{W}checkpoint/repository.py",
        old="kept = {*sound[:keep], newest}",
        new="kept = {*sound[-keep:]}",
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="zombie-deletes-data-of-successor",
        file=f"{W}checkpoint/repository.py",
        old="if owner and owner not in kept and owner.epoch <= newest.epoch:",
        new="if owner and owner not in kept:",
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="damaged-checkpoint-counts-as-kept",
        file=f"{W}checkpoint/repository.py",
        old="if name not in damaged and not lineage.superseding_start(name)",
        new="if not lineage.superseding_start(name)",
        tests=(f"{CHECKPOINT}test_repository.py",),
    ),
    Mistake(
        name="oldest-checkpoint-restored",
        file=f"{W}checkpoint/repository.py",
        old="return sorted(listed, reverse=True)",
        new="return sorted(listed)",
        tests=(f"{CHECKPOINT}test_fencing.py",),
    ),
    Mistake(
        name="checkpoint-of-another-job-restored",
        file=f"{W}checkpoint/repository.py",
        old='if self._job and commit.job not in {"", self._job}:',
        new="if False:",
        tests=(f"{CHECKPOINT}test_formats.py",),
    ),
    Mistake(
        name="unreadable-store-restarts-at-step-0",
        file=f"{W}checkpoint/restore.py",
        old="            if source.unavailable:\n",
        new="            if source.unavailable and False:\n",
        tests=(f"{CHECKPOINT}test_restore.py",),
    ),
    Mistake(
        name="checkpoint-off-the-lineage-restored",
        file=f"{W}checkpoint/restore.py",
        old="names = [name for name in committed if not source.lineage.superseding_start(name)]",
        new="names = committed",
        tests=(f"{CHECKPOINT}test_fencing.py",),
    ),
    Mistake(
        name="quarantined-checkpoint-read-again",
        file=f"{W}checkpoint/restore.py",
        old="                known = source.repository.quarantine.reasons(self._until_s)\n",
        new="",
        tests=(f"{CHECKPOINT}test_restore.py",),
    ),
    Mistake(
        name="partly-overwritten-state-trained",
        file=f"{W}checkpoint/restore.py",
        old="        self._raise_if_overwritten()\n        return None, self._sources[0]",
        new="        return None, self._sources[0]",
        tests=(f"{CHECKPOINT}test_restore.py",),
    ),
    Mistake(
        name="claim-not-read-back",
        file=f"{W}checkpoint/fencing.py",
        old="return retry_until(lambda: self.store.get(key), until_s) == data",
        new="return bool(retry_until(lambda: self.store.get(key), until_s))",
        tests=(f"{CHECKPOINT}test_fencing.py",),
    ),
    Mistake(
        name="epoch-used-twice",
        file=f"{W}checkpoint/fencing.py",
        old="            if max(claimed) == epoch:\n",
        new="            if True:\n",
        tests=(f"{CHECKPOINT}test_fencing.py",),
    ),
    Mistake(
        name="pointer-of-newer-epoch-replaced",
        file=f"{W}checkpoint/index.py",
        old="(there.epoch, there.step) >= (name.epoch, name.step)",
        new="there.step >= name.step",
        tests=(f"{CHECKPOINT}test_fencing.py", f"{CHECKPOINT}test_concurrent_writers.py"),
    ),
    Mistake(
        name="commit-at-start-of-newer-epoch-cut-off",
        file=f"{W}protocol/lineage.py",
        old="if s.epoch > name.epoch and s.step < name.step)",
        new="if s.epoch > name.epoch and s.step <= name.step)",
        tests=(f"{CHECKPOINT}test_fencing.py",),
    ),
    Mistake(
        name="overlapping-pieces-accepted",
        file=f"{W}checkpoint/coverage.py",
        old="if start != at or stop <= start:",
        new="if start > at or stop <= start:",
        tests=("tests/worker/distributed/test_tensor_layout.py",),
    ),
    Mistake(
        name="directory-store-overwrites-commit",
        file=f"{W}storage/directory.py",
        old="            except FileExistsError:\n                return False\n",
        new="            except FileExistsError:\n                draft.replace(self._root / key)\n                draft.touch()\n",
        tests=("tests/worker/storage/test_stores.py",),
    ),
)

RUN_MISTAKES: Final = (
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
        old="= max(0, wanted - 1 - offset.before)",
        new="= max(0, wanted - 1)",
        tests=("tests/worker/telemetry/test_incarnation.py",),
    ),
    Mistake(
        name="lost-reports-not-sent-again",
        file=f"{W}telemetry/delivery.py",
        old="            if wanted != expected:\n                start = START\n            elif batch:",
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
        tests=(f"{DATA}test_resumable_loader.py",),
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
)

WORKER_MISTAKES: Final = (*CHECKPOINT_MISTAKES, *RUN_MISTAKES)
