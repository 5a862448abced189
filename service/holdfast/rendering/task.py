"""Renders a `JobSpec` as the SkyPilot task that launchers are given.

The base task is loaded from `sky_tasks/`, typed fields are merged in, and the result is dumped. Text templates are
avoided so that no string of a user becomes syntax. Also checks retention rules against the component that deletes old
checkpoints, elastic numbers of nodes against the launcher, and settings that local jobs do not support.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.protocol.environment import Env
from holdfast_worker.protocol.policies import RecoveryMode, RetentionOwner

from holdfast.domain.jobfile.limits import parse_seconds
from holdfast.domain.jobfile.node_groups import launcher_flaws
from holdfast.domain.jobfile.parser import Overrides, ParsedJobFile, parse_job_file
from holdfast.domain.jobfile.places import list_flaws
from holdfast.domain.jobfile.spec import Engine, JobSpec, launcher_name
from holdfast.errors import BadJobFile, ValidationIssue
from holdfast.rendering.base_task import REDACTED, base_task, dump_all
from holdfast.rendering.skypilot import group_envs, managed_tasks, task_name
from holdfast.rendering.slurm import slurm_notes


def retention_flaws(spec: JobSpec) -> Iterator[ValidationIssue]:
    """Yield retention rules that the deleting component does not support."""
    checkpoint = spec.holdfast.checkpoint
    if (
        checkpoint is None
        or spec.retention_owner is not RetentionOwner.WORKER
        or checkpoint.keep.is_by_number_alone
    ):
        return
    if checkpoint.tidy is RetentionOwner.WORKER:
        reason, way_out = (
            "with this value of tidy the worker deletes old checkpoints",
            "remove tidy",
        )
    else:
        reason, way_out = spec.store_refusal, "give it access and write tidy: service"
    yield ValidationIssue(
        "#/holdfast/checkpoint/keep",
        f"every and best are supported only by the service, and {reason}; {way_out}, or keep a number of checkpoints",
    )


def retention_notes(spec: JobSpec) -> Iterator[str]:
    """Yield a note if the worker deletes old checkpoints only because the service has no access."""
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is not None and checkpoint.tidy is None and spec.store_refusal:
        yield (
            f"holdfast.checkpoint.tidy: {spec.store_refusal}, so the worker deletes old checkpoints; "
            "if the service has its own access, write tidy: service"
        )


def output_notes(spec: JobSpec) -> Iterator[str]:
    """Yield a note if nothing collects output files, or the service cannot read them."""
    if not spec.holdfast.outputs:
        return
    if spec.store_refusal:
        yield f"holdfast.outputs: {spec.store_refusal}, so holdfast outputs cannot show the files; read them from the store"
    if "holdfast-worker" not in spec.run:
        yield "holdfast.outputs: only holdfast-worker run collects the files, and run does not mention it"


def elastic_flaws(spec: JobSpec) -> Iterator[ValidationIssue]:
    """Yield what prevents training on fewer nodes than an elastic job has."""
    if spec.min_nodes is None:
        return
    if spec.engine is Engine.SKYPILOT and not spec.holdfast.groups:
        yield ValidationIssue(
            "#/num_nodes",
            f"is a range, and the {launcher_name(spec.engine)} launcher replaces all nodes after a loss; "
            f"write the number of nodes, {spec.num_nodes}, or divide them into holdfast.groups",
        )
    if spec.holdfast.recovery is RecoveryMode.RESTART:
        yield ValidationIssue(
            "#/num_nodes",
            "is a range, and with holdfast.recovery: restart all ranks end after a loss; "
            f"write in_process or remove recovery, or write the number of nodes, {spec.num_nodes}",
        )


def elastic_notes(spec: JobSpec) -> Iterator[str]:
    """Yield a note if a limit makes the minimum of an elastic job useless."""
    if spec.min_nodes is not None and spec.holdfast.limits.max_failures == 1:
        yield (
            "num_nodes: with holdfast.limits.max_failures: 1 no ranks are replaced, so a lost node ends the attempt; "
            "write a higher max_failures to continue on fewer nodes"
        )


_UNSUPPORTED: Final = {
    "workdir": "clone the repository and write the path of the clone",
    "file_mounts": "put the files under workdir or read them from their current path",
    "volumes": "use a directory on this machine",
    "service": "submit a job that ends",
    "pool": "remove it",
    "execution": "remove it; a job file holds one task",
}
_IGNORED_RESOURCES: Final = frozenset({"infra", "use_spot", "job_recovery"})


def deadline_notes(spec: JobSpec) -> Iterator[str]:
    """Yield what a deadline does not do by itself."""
    block = spec.holdfast
    if block.limits.deadline is not None and block.plan is None and not block.groups:
        yield "holdfast.limits.deadline only pauses a job that is late; add holdfast.plan to keep it"


def local_notes(spec: JobSpec) -> tuple[str, ...]:
    """Return notes about settings without effect on infra local.

    Raises:
        BadJobFile: the job uses settings that infra local does not support.
    """
    flaws = tuple(
        ValidationIssue(f"#/{word}", f"is not supported on infra local; {way_out}")
        for word, way_out in _UNSUPPORTED.items()
        if word in spec.more
    )
    if flaws:
        raise BadJobFile(flaws)
    return tuple(
        f"resources.{word} has no effect on infra local: nodes are processes of this machine"
        for word in spec.resources
        if word not in _IGNORED_RESOURCES
    )


@dataclass(frozen=True, slots=True)
class RenderedTask:
    """A task as it will be launched, except for what `with_launch_values` adds."""

    task: Mapping[str, Any]
    """The task of all nodes."""
    text: str
    """The task as YAML; with node groups one document for the task of each."""
    notes: tuple[str, ...]
    """Settings without effect on the job's launcher, and unexpected defaults, as sentences."""


def read_and_render(text: str, overrides: Overrides) -> tuple[ParsedJobFile, RenderedTask]:
    """Parse a job file and render its task.

    Raises:
        BadJobFile: the file is invalid or uses unsupported settings.
    """
    parsed = parse_job_file(text, overrides)
    if flaws := tuple(list_flaws(parsed.spec.resources)):
        raise BadJobFile(flaws)
    return parsed, render(parsed.spec)


def render(spec: JobSpec) -> RenderedTask:
    """Render the SkyPilot task of a job.

    Raises:
        BadJobFile: the job uses settings that its launcher, or the component that deletes its checkpoints, does not
        support.
    """
    if flaws := (
        *retention_flaws(spec),
        *(launcher_flaws(spec) if spec.holdfast.groups else ()),
        *elastic_flaws(spec),
    ):
        raise BadJobFile(flaws)
    base = base_task()
    task = {
        "name": spec.name,
        "workdir": spec.workdir,
        "num_nodes": spec.num_nodes,
        "resources": {"use_spot": base["resources"]["use_spot"], **_without_nulls(spec.resources)},
        "envs": {**base["envs"], **_worker_envs(spec), **spec.envs},
        "secrets": dict.fromkeys(spec.secrets, REDACTED) or None,
        "setup": spec.setup,
        "run": spec.run,
        **spec.more,
    }
    notes: tuple[str, ...] = ()
    parts = list[Mapping[str, Any]]()
    match spec.engine:
        case Engine.LOCAL:
            notes = local_notes(spec)
        case Engine.SKYPILOT:
            words, notes = managed_tasks(spec, base)
            parts = [
                _without_nulls({**task, **own, "envs": {**task["envs"], **group_envs(spec, part)}})
                for own, part in zip(words, spec.parts, strict=True)
            ]
            task |= {**words[0], "name": task_name(spec.name), "num_nodes": spec.num_nodes}
        case Engine.SLURM:
            notes = slurm_notes(spec)
    task = _without_nulls(task)
    if spec.holdfast.checkpoint is None:
        notes += (
            "no checkpoint store: a preempted job restarts at step 0; add holdfast.checkpoint.store",
        )
    text = dump_all(parts or [task])
    return RenderedTask(
        task,
        text,
        (
            *notes,
            *elastic_notes(spec),
            *retention_notes(spec),
            *output_notes(spec),
            *deadline_notes(spec),
        ),
    )


def _without_nulls(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without nulls; a null always means that the key was not set."""
    return {word: value for word, value in words.items() if value is not None}


def _worker_envs(spec: JobSpec) -> dict[str, str]:
    envs = {Env.NAME.value: spec.name}
    if checkpoint := spec.holdfast.checkpoint:
        envs |= {
            Env.STORE.value: checkpoint.store,
            Env.EVERY.value: checkpoint.every,
            Env.KEEP.value: str(checkpoint.keep.last),
            Env.TIDY.value: str(spec.retention_owner),
            Env.ON_SAVE_FAILURE.value: checkpoint.on_failure.value,
        }
        if checkpoint.memory != "auto":
            envs[Env.MEMORY.value] = checkpoint.memory
        if checkpoint.from_job:
            envs[Env.FROM.value] = checkpoint.from_job
    if spec.holdfast.keep_failed:
        envs[Env.KEEP_FAILED.value] = str(parse_seconds(spec.holdfast.keep_failed))
    if spec.holdfast.outputs:
        envs[Env.OUTPUTS.value] = json.dumps(spec.holdfast.outputs)
    if spec.holdfast.limits.max_failures == 1:
        envs[Env.MAX_RESTARTS.value] = "0"
    if spec.min_nodes is not None and spec.min_nodes < spec.num_nodes:
        envs[Env.MIN_NODES.value] = str(spec.min_nodes)
    if spec.holdfast.recovery is not RecoveryMode.IN_PROCESS:
        envs[Env.RECOVERY.value] = spec.holdfast.recovery.value
    if (max_stall := spec.holdfast.limits.max_stall_argument) != "auto":
        envs[Env.MAX_STALL.value] = max_stall
    return envs
