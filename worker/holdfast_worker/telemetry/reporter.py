"""Writes reports of a run to the spool: one method per kind, which builds its body."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from holdfast_worker.clock import to_iso
from holdfast_worker.console import log_info
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.protocol.gpu_health import GpuReading, NodeGpus
from holdfast_worker.protocol.policies import ConsistencyGuarantee, Interval, OnFailure
from holdfast_worker.protocol.reports import Json, ReportKind
from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.telemetry.spool import Spool


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A checkpoint that the restore skipped, and the reason."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOrigin:
    """From where training starts."""

    restored_from: str | None = None
    """The checkpoint; None: from the beginning."""
    held_at: str | None = None
    """RFC 3339 time of the snapshot if it is one in the memory of the nodes, which the store does not have."""
    passed_over: Sequence[SkippedCheckpoint] = ()
    store_usage: StoreUsage = NO_USAGE
    """Requests of all ranks to the store since their start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedCheckpoint:
    """A complete and durable checkpoint."""

    step: int
    checkpoint: str
    size_bytes: int
    stall_ms: int
    upload_ms: int
    snapshot_at: datetime
    weights_sha256: str
    interval: Interval | None
    """New checkpoint interval of `auto`; None if the job file sets the interval."""
    metrics: Mapping[str, MetricValue]
    store_usage: StoreUsage = NO_USAGE
    """Requests of all ranks to the store since their start."""


class Reporter:
    """Writes reports to the spool; a no-op on ranks other than 0 and without a spool."""

    def __init__(self, spool: Spool | None) -> None:
        self._spool = spool

    def restore_started(self, store: tuple[ConsistencyGuarantee | None, str] | None) -> None:
        """Report that the program has started, with the guarantee of its store and its place.

        None without a store.
        """
        guarantee, place = store or (None, "")
        body: dict[str, Json] = {"guarantee": guarantee}
        if place:
            body["store_place"] = place
        self._append(ReportKind.RESTORE_STARTED, body)

    def training_started(
        self,
        step: int,
        total_steps: int | None,
        world_size: int,
        origin: TrainingOrigin,
        *,
        keeps_state: bool,
    ) -> None:
        """Report that the first step of this attempt begins.

        `keeps_state`: whether the other nodes keep the state if one is lost.
        """
        over: list[Json] = [asdict(skipped) for skipped in origin.passed_over]
        self._append(
            ReportKind.TRAINING_STARTED,
            {
                "step": step,
                "total_steps": total_steps,
                "world_size": world_size,
                "restored_from": origin.restored_from,
                "passed_over": over,
                **({"held_at": origin.held_at} if origin.held_at else {}),
                **({"keeps_state": True} if keeps_state else {}),
                **_usage_field(origin.store_usage),
            },
        )

    def run_described(self, manifest: Mapping[str, Json]) -> None:
        """Report the manifest of the run."""
        self._append(ReportKind.RUN_DESCRIBED, {"manifest": dict(manifest)})

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """Report a metric point. Values that are not finite become null, as JSON has no NaN."""
        point: dict[str, Json] = {k: v if math.isfinite(v) else None for k, v in values.items()}
        self._append(ReportKind.PROGRESS, {"step": step, "values": point})

    def checkpoint_committed(self, committed: CommittedCheckpoint) -> None:
        """Report that a checkpoint is durable."""
        self._append(
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
                **_usage_field(committed.store_usage),
            },
        )

    def checkpoint_failed(self, step: int, detail: str) -> None:
        """Report that a checkpoint failed; training continues."""
        self._append(ReportKind.CHECKPOINT_FAILED, {"step": step, "detail": detail})

    def saving_failed(
        self, step: int, failures: int, safe_step: int, policy: OnFailure, detail: str
    ) -> None:
        """Report that `failures` consecutive checkpoints failed."""
        self._append(
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
        """Report a termination notice; `left_s` is None if it named no time."""
        self._append(ReportKind.PREEMPTION_NOTICED, {"step": step, "left_s": left_s})

    def ranks_restarted(
        self, step: int, exit_code: int, detail: str, *, is_node_lost: bool = False
    ) -> None:
        """Report that a rank failed, or nodes were lost, and that all ranks start again.

        `is_node_lost`: nodes were lost, in whose place there are others before the ranks start.
        """
        body: dict[str, Json] = {"step": step, "exit_code": exit_code, "detail": detail}
        if is_node_lost:
            body["node_lost"] = True
        self._append(ReportKind.RANKS_RESTARTED, body)

    def ranks_replaced(
        self,
        step: int,
        ranks: Sequence[int],
        cause: str,
        paused_s: float,
        hosted_nodes: Sequence[int] = (),
    ) -> None:
        """Report that ranks were lost and replaced, while the others waited.

        `hosted_nodes`: missing nodes whose ranks run on others.
        """
        body: dict[str, Json] = {
            "step": step,
            "ranks": list(ranks),
            "cause": cause,
            "paused_ms": round(paused_s * 1000),
        }
        if hosted_nodes:
            body["hosted_nodes"] = list(hosted_nodes)
        self._append(ReportKind.RANKS_REPLACED, body)

    def gpus_read(self, nodes: Sequence[NodeGpus]) -> None:
        """Report the newest readings of GPUs."""
        self._append(ReportKind.GPUS_READ, {"nodes": [each.dump() for each in nodes]})

    def gpu_unhealthy(self, node: NodeGpus, gpu: GpuReading) -> None:
        """Report the faults of a GPU."""
        faults: list[Json] = [*gpu.faults]
        self._append(
            ReportKind.GPU_UNHEALTHY,
            {
                "node": node.node,
                "host": node.host,
                "gpu": gpu.gpu,
                "name": gpu.name,
                "faults": faults,
                "detail": gpu.detail,
                "since": node.at,
            },
        )

    def nodes_kept(self, step: int, until: datetime) -> None:
        """Report that the nodes of a failed program are kept until a time."""
        self._append(ReportKind.NODES_KEPT, {"step": step, "until": to_iso(until)})

    def worker_left(self, left: ExitReason) -> None:
        """Report that the ranks have exited."""
        self._append(
            ReportKind.WORKER_LEFT,
            {
                "step": left.step,
                "reason": left.reason,
                "exit_code": left.exit_code,
                "detail": left.detail,
            },
        )

    def _append(self, kind: ReportKind, body: Mapping[str, Json]) -> None:
        if not self._spool:
            return
        try:
            self._spool.append(kind, body)
        except OSError as error:
            # Training is worth more than its reports.
            log_info(f"a {kind} report could not be written: {error}")


def _usage_field(usage: StoreUsage) -> dict[str, Json]:
    """The counters of requests as a field of a report; none before the first request."""
    return {"store_usage": dict(usage.dump())} if usage != NO_USAGE else {}
