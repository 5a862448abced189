"""The job file of a short run on this machine, made of one that is meant for elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.errors import BadRequest

SAVES: Final = 6
"""Checkpoints of a trial. Fewer leave little between them to be lost and made again; more prove no more."""
_ELSEWHERE: Final = ("file_mounts", "volumes", "service", "pool", "execution")


def shortened_job(text: str, *, name: str, steps: int, step_ms: int) -> dict[str, Any]:
    """The same job as processes of this machine, over after so many steps, each of them written down.

    Raises:
        BadRequest: it is no job file, or has no store, without which nothing is resumed.
    """
    try:
        told = load(text)
    except NotReadable as error:
        raise BadRequest(f"the job file {error}") from error
    if not isinstance(told, dict) or "run" not in told:
        raise BadRequest("a job file is one mapping such as `run: ...`")
    block = told.get("holdfast") or {}
    checkpoint = block.get("checkpoint") if isinstance(block, dict) else None
    if not isinstance(checkpoint, dict) or not checkpoint.get("store"):
        raise BadRequest(
            "the job file names no checkpoint store, so that a resume begins at step 0 and proves nothing; write "
            "holdfast: {checkpoint: {store: ...}}, such as file:///tmp/proofs for a trial"
        )
    kept = {word: value for word, value in block.items() if word in {"project", "tags"}}
    return {
        **{word: value for word, value in told.items() if word not in _ELSEWHERE},
        "name": name,
        "resources": {"infra": "local"},
        "envs": {**_envs(told), **_asked(steps, step_ms)},
        "holdfast": {
            **kept,
            "checkpoint": {**checkpoint, "every": f"{max(1, steps // SAVES)} steps"},
        },
    }


def preemption_steps(steps: int, kills: int) -> list[int]:
    """The steps at which nodes are taken, evenly spread.

    Raises:
        BadRequest: there are too few steps for so many.
    """
    if steps < 3 * (kills + 1):
        raise BadRequest(
            f"--steps {steps}: too few for {kills} kills; take {3 * (kills + 1)} or more"
        )
    return [steps * (n + 1) // (kills + 1) for n in range(kills)]


def _envs(told: Mapping[str, Any]) -> dict[str, Any]:
    envs = told.get("envs")
    return dict(envs) if isinstance(envs, dict) else {}


def _asked(steps: int, step_ms: int) -> dict[str, str]:
    # Sums over threads end in other bits each time; one of them is the same on every machine.
    return {
        Env.MAX_STEPS.value: str(steps),
        Env.WITNESS.value: str(step_ms),
        Env.DETERMINISTIC.value: "1",
        "OMP_NUM_THREADS": "1",
    }
