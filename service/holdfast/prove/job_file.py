"""Job file of a short local run, derived from one for another launcher. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.errors import BadRequest

CHECKPOINTS: Final = 6
"""Number of checkpoints of the run.

A lower value leaves little work to lose between them; a higher one proves no more.
"""
_ELSEWHERE: Final = ("file_mounts", "volumes", "service", "pool", "execution")


def shortened_job(text: str, *, name: str, steps: int, step_ms: int) -> dict[str, Any]:
    """Return the job as local processes that stop after `steps` steps and log each of them.

    Raises:
        BadRequest: it is not a job file, or has no store, without which it cannot resume.
    """
    try:
        data = load(text)
    except NotReadable as error:
        raise BadRequest(f"the job file {error}") from error
    if not isinstance(data, dict) or "run" not in data:
        raise BadRequest("a job file is one mapping such as `run: ...`")
    block = data.get("holdfast") or {}
    checkpoint = block.get("checkpoint") if isinstance(block, dict) else None
    if not isinstance(checkpoint, dict) or not checkpoint.get("store"):
        raise BadRequest(
            "the job file names no checkpoint store, so a resume starts at step 0 and proves nothing; write "
            "holdfast: {checkpoint: {store: ...}}, such as file:///tmp/proofs for a trial"
        )
    kept = {word: value for word, value in block.items() if word in {"project", "tags", "recovery"}}
    return {
        **{word: value for word, value in data.items() if word not in _ELSEWHERE},
        **_nodes(data, block),
        "name": name,
        "resources": {"infra": "local"},
        "envs": {**_envs(data), **_experiment_envs(steps, step_ms)},
        "holdfast": {
            **kept,
            "checkpoint": {**checkpoint, "every": f"{max(1, steps // CHECKPOINTS)} steps"},
        },
    }


def preemption_steps(steps: int, kills: int) -> list[int]:
    """Return the steps at which nodes are preempted, evenly spaced.

    Raises:
        BadRequest: there are too few steps.
    """
    if steps < 3 * (kills + 1):
        raise BadRequest(
            f"--steps {steps}: too few for {kills} kills; use {3 * (kills + 1)} or more"
        )
    return [steps * (n + 1) // (kills + 1) for n in range(kills)]


def _nodes(data: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of nodes of all node groups, which do not exist on this machine."""
    groups = block.get("groups")
    if "num_nodes" in data or not isinstance(groups, list):
        return {}
    counts = [group.get("num_nodes") for group in groups if isinstance(group, dict)]
    return {"num_nodes": sum(count for count in counts if isinstance(count, int))}


def _envs(data: Mapping[str, Any]) -> dict[str, Any]:
    envs = data.get("envs")
    return dict(envs) if isinstance(envs, dict) else {}


def _experiment_envs(steps: int, step_ms: int) -> dict[str, str]:
    # Sums over several threads differ in their last bits; a single thread is reproducible.
    return {
        Env.MAX_STEPS.value: str(steps),
        Env.WITNESS.value: str(step_ms),
        Env.DETERMINISTIC.value: "1",
        "OMP_NUM_THREADS": "1",
    }
