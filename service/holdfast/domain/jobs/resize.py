"""What other nodes mean for a paused job: ranks, batch, checkpoints and store. Pure.

The newest manifest of the job says how many ranks trained, the batch of each, and which objects have one state for each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast.domain.jobfile.resource_changes import describe
from holdfast.domain.jobfile.spec import Engine, JobSpec, launcher_name
from holdfast.domain.jobfile.spot_safety import option_accelerators
from holdfast.domain.jobs.job import Job, State


def resize_refusal(job: Job) -> str | None:
    """Why a job cannot get other nodes now, and the remedy; None if it can."""
    match job.state:
        case State.PAUSED:
            return None
        case State.PAUSING:
            return "it is pausing, and its nodes may still run; try again when it is paused"
        case State.STOPPING:
            return "it is stopping"
        case State.ENDED:
            return f"it has ended; submit a changed file, with holdfast.checkpoint.from: {job.id}"
        case _:
            return f"it is {job.state}; pause it first, so that its work is saved: holdfast pause {job.id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankChange:
    """The ranks of a job before and after a resize."""

    before: int | None
    """None: no attempt has trained yet."""
    after: int | None
    """None: it depends on the GPUs that the new nodes turn out to have."""
    batch: int | None = None
    """Samples that each rank reads at once; None if unknown."""
    per_rank: tuple[str, ...] | None = None
    """Tracked objects with one state for each rank; None if no manifest says so."""

    @classmethod
    def of(cls, before: JobSpec, after: JobSpec, manifest: Mapping[str, Any] | None) -> Self:
        """The change from one job file to another, given the newest manifest."""
        if manifest is None:
            return cls(before=None, after=None)
        ranks, nodes = _count(manifest.get("world_size")), _count(manifest.get("nodes"))
        per_node = ranks // nodes if ranks and nodes else None
        words = "GPUs of each node"
        if after.engine is not before.engine or describe(after)[words] != describe(before)[words]:
            per_node = max(map(option_accelerators, after.options)) or None
        loader = manifest.get("loader")
        batch = _count(loader.get("batch_size")) if isinstance(loader, Mapping) else None
        names = manifest.get("per_rank")
        return cls(
            before=ranks,
            after=None if per_node is None else per_node * after.num_nodes,
            batch=batch,
            per_rank=tuple(map(str, names)) if isinstance(names, list) else None,
        )

    @property
    def batch_sentence(self) -> str:
        """What changes for the batch of a step; empty before the first attempt."""
        if self.before is None:
            return ""
        if self.after is None:
            return "The number of ranks follows from the GPUs of the new nodes, and the batch of a step from that number."
        if self.after == self.before:
            return f"There are {self.before:,} ranks as before, so that the batch of a step is the same."
        ranks = f"There are {self.after:,} ranks instead of {self.before:,}."
        if not self.batch:
            return f"{ranks} The script decides what this means for the batch of a step."
        old, new = self.batch * self.before, self.batch * self.after
        return (
            f"{ranks} At {self.batch:,} samples for each rank, a step takes {new:,} samples instead of {old:,}. To keep {old:,}, let "
            "the script divide the batch by run.world_size, or accumulate gradients."
        )

    def checkpoint_refusal(self, step: int | None) -> str | None:
        """Why the newest checkpoint, of `step`, does not fit; None if it does, as far as known."""
        if step is None or not self.per_rank or self.after in {None, self.before}:
            return None
        return (
            f"the checkpoints of the job hold {', '.join(self.per_rank)} for each of {self.before:,} ranks, and {self.after:,} ranks "
            f"would train; choose nodes with {self.before:,} ranks together, or submit a new job without them"
        )

    def checkpoint_sentence(self, step: int | None, *, has_store: bool) -> str:
        """Where training continues, and whether that is certain."""
        if not has_store or step is None:
            why = "has no checkpoint yet" if has_store else "has no checkpoint store"
            return f"The job {why} and starts at step 0."
        where = f"Training continues from step {step:,}"
        if self.per_rank == () or (self.after == self.before and self.before):
            fits = "" if self.per_rank else ": its checkpoints fit any number of ranks"
            return f"{where}{fits}."
        if self.per_rank:
            return f"{where} if {self.before or 0:,} ranks train again: {', '.join(self.per_rank)} is saved for each rank."
        return (
            f"{where} if no tracked object has a state for each rank, which this job has not reported. A checkpoint that does not fit is "
            "refused before the first step."
        )


def store_refusal(before: JobSpec, after: JobSpec, *, is_shared: bool) -> str | None:
    """Why the new nodes cannot see the checkpoints of the job, with the remedy, or None.

    `is_shared`: the user says that the folder is the same there.
    """
    checkpoint = before.holdfast.checkpoint
    if checkpoint is None or not checkpoint.store.startswith("file://"):
        return None
    places = describe(before)["place"], describe(after)["place"]
    clouds = Engine.SKYPILOT in {before.engine, after.engine}
    if (before.engine is after.engine and not clouds) or places[0] == places[1]:
        return None
    moves = f"its checkpoints are in the folder {checkpoint.store}"
    if clouds:
        return f"{moves}, which does not follow it from {places[0]} to {places[1]}; only jobs with a bucket as their store can move there"
    if is_shared:
        return None
    return (
        f"{moves}, which nodes of {launcher_name(after.engine)} may not see; if it is the same folder there, repeat this with --force "
        "(force in the API)"
    )


def retention_refusal(before: JobSpec, after: JobSpec) -> str | None:
    """Why the service could not delete old checkpoints any more; None if it can, or need not."""
    if before.store_refusal or not after.store_refusal:
        return None
    return f"the service deletes old checkpoints of this job, and {after.store_refusal}"


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
