"""Who removes old checkpoints, and what that means for what was asked for.

What a job means on nodes that are processes of this machine.

A `JobSpec` becomes the SkyPilot task that launchers are given.

The base task is loaded from `sky_tasks/`, typed fields are laid over it, and the result is dumped: never text
templates, so that no string of a user can become syntax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.protocol.environment import Env
from holdfast_worker.protocol.policies import RetentionOwner

from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.errors import BadJobFile, Flaw
from holdfast.rendering.base_task import HIDDEN, base_task, dump
from holdfast.rendering.skypilot import managed
from holdfast.rendering.slurm import notes_of_slurm


def wrong_keep(spec: JobSpec) -> Iterator[Flaw]:
    """A rule that whoever removes the others does not know."""
    checkpoint = spec.holdfast.checkpoint
    if (
        checkpoint is None
        or spec.tidied_by is not RetentionOwner.WORKER
        or checkpoint.keep.is_by_number_alone
    ):
        return
    if checkpoint.tidy is RetentionOwner.WORKER:
        reason, way_out = "tidy says that the worker removes old checkpoints", "leave tidy out"
    else:
        reason, way_out = spec.locked_out, "give it access, and write tidy: service"
    yield Flaw(
        "#/holdfast/checkpoint/keep",
        f"every and best are known to the service alone, and {reason}; {way_out}, or keep a number",
    )


def notes_of_keep(spec: JobSpec) -> Iterator[str]:
    """That the worker removes old checkpoints, where nobody has said so."""
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is not None and checkpoint.tidy is None and spec.locked_out:
        yield (
            f"holdfast.checkpoint.tidy: {spec.locked_out}, so the worker removes old checkpoints; "
            "if the service has access of its own, write tidy: service"
        )


_UNABLE: Final = {
    "workdir": "clone the repository, and write the folder where it lies",
    "file_mounts": "put the files under workdir, or read them from where they are",
    "volumes": "use a folder of this machine",
    "service": "submit a job that ends",
    "pool": "leave it out",
    "execution": "leave it out, since a job file holds one task",
}
_IDLE: Final = frozenset({"infra", "use_spot", "job_recovery"})


def notes_of_local(spec: JobSpec) -> tuple[str, ...]:
    """What has no effect here, as sentences.

    Raises:
        BadJobFile: the job asks for something that cannot be done here.
    """
    flaws = tuple(
        Flaw(f"#/{word}", f"cannot be done on infra local; {way_out}")
        for word, way_out in _UNABLE.items()
        if word in spec.more
    )
    if flaws:
        raise BadJobFile(flaws)
    return tuple(
        f"resources.{word} has no effect on infra local: nodes are processes of this machine"
        for word in spec.resources
        if word not in _IDLE
    )


@dataclass(frozen=True, slots=True)
class Rendered:
    """A task, exactly as it would be launched, but for what `complete` adds."""

    task: Mapping[str, Any]
    text: str
    """The same as YAML."""
    notes: tuple[str, ...]
    """What has no effect where the job would run, and what is other than one may think, as sentences."""


def render(spec: JobSpec) -> Rendered:
    """The SkyPilot task of a job.

    Raises:
        BadJobFile: the job asks for something that its engine, or whoever tidies its store, cannot do.
    """
    if flaws := tuple(wrong_keep(spec)):
        raise BadJobFile(flaws)
    house = base_task()
    task = {
        "name": spec.name,
        "workdir": spec.workdir,
        "num_nodes": spec.num_nodes,
        "resources": {"use_spot": house["resources"]["use_spot"], **_given(spec.resources)},
        "envs": {**house["envs"], **_worker_envs(spec), **spec.envs},
        "secrets": dict.fromkeys(spec.secrets, HIDDEN) or None,
        "setup": spec.setup,
        "run": spec.run,
        **spec.more,
    }
    notes: tuple[str, ...] = ()
    match spec.engine:
        case Engine.LOCAL:
            notes = notes_of_local(spec)
        case Engine.SKYPILOT:
            words, notes = managed(spec, house)
            task |= words
        case Engine.SLURM:
            notes = notes_of_slurm(spec)
    task = _given(task)
    if spec.holdfast.checkpoint is None:
        notes += (
            "no checkpoint store: a preempted job starts again at step 0; add holdfast.checkpoint.store",
        )
    return Rendered(task, dump(task), (*notes, *notes_of_keep(spec)))


def _given(words: Mapping[str, Any]) -> dict[str, Any]:
    """What was said; null everywhere means that nothing was."""
    return {word: value for word, value in words.items() if value is not None}


def _worker_envs(spec: JobSpec) -> dict[str, str]:
    envs = {Env.NAME.value: spec.name}
    if checkpoint := spec.holdfast.checkpoint:
        envs |= {
            Env.STORE.value: checkpoint.store,
            Env.EVERY.value: checkpoint.every,
            Env.KEEP.value: str(checkpoint.keep.last),
            Env.TIDY.value: str(spec.tidied_by),
            Env.ON_SAVE_FAILURE.value: checkpoint.on_failure.value,
        }
        if checkpoint.from_job:
            envs[Env.FROM.value] = checkpoint.from_job
    if (max_stall := spec.holdfast.limits.max_stall_word) != "auto":
        envs[Env.MAX_STALL.value] = max_stall
    return envs
