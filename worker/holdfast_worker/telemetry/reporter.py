"""What a run has to say, as reports in the spool: one method per kind, so that each body is written in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from holdfast_worker.clock import to_iso
from holdfast_worker.console import log_info
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.protocol.policies import ConsistencyGuarantee, Interval, OnFailure
from holdfast_worker.protocol.reports import Json, ReportKind
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.telemetry.spool import Spool


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A checkpoint that could not be used, and why."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint that is whole and durable."""

    step: int
    checkpoint: str
    size_bytes: int
    stall_ms: int
    upload_ms: int
    snapshot_at: datetime
    weights_sha256: str
    interval: Interval | None
    """How often `auto` saves from now on; None where the job file says how often."""
    metrics: Mapping[str, MetricValue]


class Reporter:
    """The mouth of rank 0. Without a spool, and on every other rank, it says nothing."""

    def __init__(self, spool: Spool | None) -> None:
        self._spool = spool

    def restore_started(self, guarantee: ConsistencyGuarantee | None) -> None:
        """The program is up, with a store that promises this; None without a store."""
        self._say(ReportKind.RESTORE_STARTED, {"guarantee": guarantee})

    def training_started(
        self,
        step: int,
        total_steps: int | None,
        world_size: int,
        restored_from: str | None,
        passed_over: list[PassedOver],
    ) -> None:
        """The first step of this attempt begins."""
        over: list[Json] = [{"checkpoint": p.checkpoint, "reason": p.reason} for p in passed_over]
        self._say(
            ReportKind.TRAINING_STARTED,
            {
                "step": step,
                "total_steps": total_steps,
                "world_size": world_size,
                "restored_from": restored_from,
                "passed_over": over,
            },
        )

    def run_described(self, manifest: Mapping[str, Json]) -> None:
        """What the run comes from."""
        self._say(ReportKind.RUN_DESCRIBED, {"manifest": dict(manifest)})

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """A metric point. JSON has no NaN: a loss that diverged is null, not missing and not made up."""
        told: dict[str, Json] = {k: v if math.isfinite(v) else None for k, v in values.items()}
        self._say(ReportKind.PROGRESS, {"step": step, "values": told})

    def checkpoint_committed(self, committed: Committed) -> None:
        """A checkpoint is durable."""
        self._say(
            ReportKind.CHECKPOINT_COMMITTED,
            {
                "step": committed.step,
                "checkpoint": committed.checkpoint,
                "size_bytes": committed.size_bytes,
                "stall_ms": committed.stall_ms,
                "upload_ms": committed.upload_ms,
                "snapshot_at": to_iso(committed.snapshot_at),
                "weights_sha256": committed.weights_sha256,
                "interval": asdict(committed.interval) if committed.interval else None,
                "metrics": {name: logged.dump() for name, logged in committed.metrics.items()},
            },
        )

    def checkpoint_failed(self, step: int, detail: str) -> None:
        """A checkpoint could not be written; training goes on."""
        self._say(ReportKind.CHECKPOINT_FAILED, {"step": step, "detail": detail})

    def saving_failed(
        self, step: int, failures: int, safe_step: int, policy: OnFailure, detail: str
    ) -> None:
        """So many checkpoints in a row could not be written."""
        self._say(
            ReportKind.SAVING_FAILED,
            {
                "step": step,
                "failures": failures,
                "safe_step": safe_step,
                "policy": policy,
                "detail": detail,
            },
        )

    def preemption_noticed(self, step: int, left_s: float | None) -> None:
        """The nodes will be taken."""
        self._say(ReportKind.PREEMPTION_NOTICED, {"step": step, "left_s": left_s})

    def worker_left(self, left: ExitReason) -> None:
        """Nobody steps any more."""
        self._say(
            ReportKind.WORKER_LEFT,
            {
                "step": left.step,
                "reason": left.reason,
                "exit_code": left.exit_code,
                "detail": left.detail,
            },
        )

    def _say(self, kind: ReportKind, body: Mapping[str, Json]) -> None:
        if not self._spool:
            return
        try:
            self._spool.append(kind, body)
        except OSError as error:
            # Training is worth more than the news of it.
            log_info(f"a report of kind {kind} is lost: {error}")
