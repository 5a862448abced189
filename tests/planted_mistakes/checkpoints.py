"""Mistakes in checkpoints: commit, fencing, restore and retention."""

from __future__ import annotations

from typing import Final

from planted_mistakes.mistake import Mistake

S: Final = "service/holdfast/"
W: Final = "worker/holdfast_worker/"
CHECKPOINT: Final = "tests/worker/checkpoint/"

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
        old="        send = partial(self._send, name, snapshot, rate_limit)\n",
        new=(
            "        self._store.put(name.record_key(snapshot.rank), b'{}')\n"
            "        send = partial(self._send, name, snapshot, rate_limit)\n"
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
        old="            if max(claimed, default=0) == epoch:\n",
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
    Mistake(
        name="cloud-store-overwrites-commit",
        file=f"{W}storage/cloud.py",
        old='return self._put_if(key, data, "create")',
        new='return self._put_if(key, data, "overwrite")',
        tests=("tests/worker/storage/test_cloud_stores.py",),
    ),
    Mistake(
        name="cloud-store-replaces-an-unread-pointer",
        file=f"{W}storage/cloud.py",
        old="return self._put_if(key, new, version)",
        new='return self._put_if(key, new, "overwrite")',
        tests=("tests/worker/storage/test_cloud_stores.py",),
    ),
    Mistake(
        name="signature-in-an-error-of-a-store",
        file=f"{W}protocol/object_stores.py",
        old='first = _QUERY.sub("", head.partition("\\n")[0].partition(": <")[0])',
        new='first = head.partition("\\n")[0].partition(": <")[0]',
        tests=("tests/worker/storage/test_cloud_stores.py",),
    ),
)

MEMORY: Final = f"{CHECKPOINT}test_memory_snapshots.py"
MEMORY_MISTAKES: Final = (
    Mistake(
        name="older-snapshot-in-memory-restored",
        file=f"{W}checkpoint/restore.py",
        old="if name.step >= self.newest_step and not own.lineage.superseding_start(name)",
        new="if not own.lineage.superseding_start(name)",
        tests=(MEMORY,),
    ),
    Mistake(
        name="superseded-snapshot-in-memory-restored",
        file=f"{W}checkpoint/restore.py",
        old="if name.step >= self.newest_step and not own.lineage.superseding_start(name)",
        new="if name.step >= self.newest_step",
        tests=(MEMORY,),
    ),
    Mistake(
        name="damaged-snapshot-stays-in-memory",
        file=f"{W}checkpoint/restore.py",
        old="memory.withdraw(name, self._until_s)",
        new="pass",
        tests=(MEMORY,),
    ),
    Mistake(
        name="own-copy-replaced-before-the-commit",
        file=f"{W}checkpoint/memory_snapshots.py",
        old="        self._wait_for(self._own, {name.commit_key}, until_s)\n",
        new="",
        tests=(MEMORY,),
    ),
    Mistake(
        name="only-snapshot-of-a-node-replaced",
        file=f"{W}checkpoint/memory_snapshots.py",
        old="{name} if self._following else {name, self._kept}",
        new="{name}",
        tests=(MEMORY,),
    ),
    Mistake(
        name="second-read-of-a-damaged-copy",
        file=f"{W}node_memory/client.py",
        old="first = self._reads[key] % len(holders)",
        new="first = 0",
        tests=("tests/worker/node_memory/test_holder.py", MEMORY),
    ),
    Mistake(
        name="ranks-of-an-earlier-start-may-write",
        file=f"{W}node_memory/holder.py",
        old="self._token = secrets.token_hex(16)",
        new="self._token = self._token or secrets.token_hex(16)",
        tests=("tests/worker/node_memory/test_holder.py",),
    ),
    Mistake(
        name="memory-promised-twice",
        file=f"{W}node_memory/holder.py",
        old="self._room().usable_bytes - promised",
        new="self._room().usable_bytes",
        tests=("tests/worker/node_memory/test_holder.py",),
    ),
    Mistake(
        name="vote-of-a-lost-node-counts-for-its-successor",
        file=f"{W}watchdog/restart_agreement.py",
        old="            self.votes.pop(node, None)  # Its successor has one of its own.\n",
        new="            pass\n",
        tests=("tests/worker/watchdog/test_restart_agreement.py",),
    ),
)

RETENTION_MISTAKES: Final = (
    Mistake(
        name="service-deletes-newest-checkpoint",
        file=f"{S}domain/checkpoints/retention.py",
        old="on[-max(keep.last, MIN_KEPT) :]",
        new="on[: max(keep.last, MIN_KEPT)]",
        tests=("tests/domain/checkpoints/test_retention.py",),
    ),
    Mistake(
        name="incomplete-checkpoint-counts-as-kept",
        file=f"{S}domain/checkpoints/retention.py",
        old="    whole = [c for c in there if c.is_whole]\n",
        new="    whole = there\n",
        tests=("tests/domain/checkpoints/test_retention.py",),
    ),
    Mistake(
        name="checkpoint-deleted-while-an-attempt-chooses",
        file=f"{S}domain/checkpoints/retention.py",
        old="if is_restoring or seen.is_being_read:",
        new="if is_restoring:",
        tests=("tests/domain/checkpoints/test_retention.py",),
    ),
    Mistake(
        name="checkpoint-deleted-without-grace",
        file=f"{S}domain/checkpoints/retention.py",
        old="ripe = surplus & {c.name for c in before.commits} - _retained_names(before, keep, known)",
        new="ripe = surplus",
        tests=("tests/domain/checkpoints/test_retention.py",),
    ),
    Mistake(
        name="committed-upload-deleted-as-dead",
        file=f"{S}background/retention/deletion.py",
        old="if self.bucket.has(name.commit_key):",
        new="if False:",
        tests=("tests/background/retention/test_collector.py",),
    ),
)
