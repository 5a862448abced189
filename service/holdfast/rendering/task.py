"""A `JobSpec` becomes the SkyPilot task that launchers are given.

The base task is loaded from `sky_tasks/`, typed fields are laid over it, and the result is dumped: never text
templates, so that no string of a user can become syntax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_worker.wire import Env

from holdfast.domain.spec import Engine, JobSpec
from holdfast.errors import BadJobFile
from holdfast.rendering.house import base
from holdfast.rendering.keeping import notes_of_keep, wrong_keep
from holdfast.rendering.launch import HIDDEN
from holdfast.rendering.local import notes_of_local
from holdfast.rendering.managed import managed
from holdfast.rendering.slurm import notes_of_slurm
from holdfast.rendering.text import dump


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
    house = base()
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
