"""Renders a task as a Slurm batch job: sbatch options, variables and the common script.

The script is `sky_tasks/train.sbatch`. Only its head differs between jobs, and every value in it is quoted so that no
string of a user becomes syntax.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.resource_options import LISTS, resource_options
from holdfast.domain.jobfile.slurm_options import SlurmOptions, slurm_flaws, unlike_places
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadJobFile, ValidationIssue
from holdfast.rendering.base_task import sky_tasks

_COMMON_PART_MARKER: Final = "# ---- From here on all jobs are alike ----\n"
_UNSUPPORTED: Final = {
    "workdir": "clone the repository and write the path of the clone",
    "file_mounts": "put the files under workdir or on storage that the nodes share",
    "volumes": "use a directory that the nodes share",
    "service": "submit a job that ends",
    "pool": "remove it",
    "execution": "remove it; a job file holds one task",
}
_SUPPORTED_RESOURCES: Final = frozenset({"infra", "accelerators", "cpus", "memory"})
_IGNORED_RESOURCES: Final = frozenset({"use_spot", "job_recovery", *LISTS})
_WORKER: Final = re.compile(r"holdfast[-_]worker")


def slurm_notes(spec: JobSpec) -> tuple[str, ...]:
    """Return notes about settings without effect on Slurm.

    Raises:
        BadJobFile: the job uses settings that Slurm does not support.
    """
    flaws = tuple(
        ValidationIssue(f"#/{word}", f"is not supported on Slurm; {way_out}")
        for word, way_out in _UNSUPPORTED.items()
        if word in spec.more
    )
    task = {"resources": spec.resources, "config": spec.more.get("config")}
    if flaws := tuple(dict.fromkeys((*flaws, *slurm_flaws(task)))):
        raise BadJobFile(flaws)
    options = resource_options(spec.resources)
    words = dict.fromkeys([*spec.resources, *(word for each in options for word in each.options)])
    notes = [
        f"resources.{word} has no effect on Slurm; write the sbatch option under config.slurm.sbatch_options"
        for word in words
        if word not in _SUPPORTED_RESOURCES | _IGNORED_RESOURCES
    ]
    notes += [
        f"{place}: a Slurm job has one cluster, one QOS and one size of nodes, so only a plan uses this entry, by itself"
        for place in unlike_places(spec.resources)
    ]
    if "gpus-per-node" in (asked := SlurmOptions.from_task(task).options) and not asked.keys() & {
        "constraint",
        "gres",
    }:
        notes.append(
            "resources.accelerators: only the number is requested from Slurm, because each cluster names its GPU types differently; "
            "set constraint or gres under config.slurm.sbatch_options"
        )
    return tuple(notes)


def sbatch_options(task: Mapping[str, Any]) -> list[str]:
    """Return the sbatch options that follow from a task, without name, directory and output."""
    asked = SlurmOptions.from_task(task)
    fixed: dict[str, str | bool] = {
        "nodes": str(task.get("num_nodes") or 1),
        "ntasks-per-node": "1",
        **asked.options,
        "open-mode": "append",
        ("requeue" if asked.requeue else "no-requeue"): True,
        # Otherwise Slurm ends all nodes of a job when one fails.
        **({"no-kill": True} if _min_nodes(task) else {}),
        # Sent to the script only, which asks the ranks to save in time before the limit.
        "signal": f"B:USR1@{asked.notice_s}",
    }
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in fixed.items()]


def batch_script(task: Mapping[str, Any], options: Sequence[str], words: Mapping[str, str]) -> str:
    """Return the whole script: `options` as its head, `words` as shell variables."""
    asked = SlurmOptions.from_task(task)
    needs = ("torch",) if _WORKER.search(f"{task.get('setup')}{task['run']}") else ()
    probe = {
        "PROBE": asked.probe,
        "PROBE_PACKAGES": " ".join(needs if asked.packages is None else asked.packages),
    }
    elastic = {Env.MIN_NODES.value: least} if (least := _min_nodes(task)) else {}
    variables = {
        **words,
        "SETUP": str(task.get("setup") or ""),
        "RUN": str(task["run"]),
        **probe,
        **elastic,
    }
    body = (
        (sky_tasks() / "train.sbatch").read_text(encoding="utf-8").partition(_COMMON_PART_MARKER)[2]
    )
    head = [f"#SBATCH {_argument(option)}" for option in options]
    lines = [f"{name}={_quoted(value)}" for name, value in variables.items()]
    return "\n".join(["#!/bin/bash", *head, "", *lines, "", _COMMON_PART_MARKER + body])


def _min_nodes(task: Mapping[str, Any]) -> str:
    """Return the number of nodes with which an elastic job continues; empty for other jobs."""
    return str((task.get("envs") or {}).get(Env.MIN_NODES.value) or "")


def standalone_script(spec: JobSpec, task: Mapping[str, Any]) -> str:
    """Return a script that users submit with sbatch in a directory that the nodes share."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.name).strip("-.") or "job"
    where = [f"--job-name={name}", "--output=logs/%x-%j.out"]
    # The service does not track these checkpoints, so the worker deletes the old ones.
    envs = {key: value for key, value in task.get("envs", {}).items() if key != Env.TIDY}
    exports = "\n".join(_export_lines({**envs, Env.JOB.value: name}))
    return batch_script(
        task,
        [*where, *sbatch_options(task)],
        {
            "ENVS": exports,
            "PROJECT_DIR": spec.workdir or "$SLURM_SUBMIT_DIR",
            "OFFLINE_ROOT": str(envs.get("OFFLINE_ROOT") or ""),
            "WORKER_DIR": "",
            "LAUNCH_DIR": f"$SLURM_SUBMIT_DIR/.holdfast/{name}",
            "FIRST_ATTEMPT": "1",
            "HOLDFAST_JOB": name,
        },
    )


def standalone_script_notes(spec: JobSpec) -> tuple[str, ...]:
    """Return notes about what the script does not contain."""
    notes = [
        "before sbatch: mkdir -p logs, because Slurm does not create the directory of its output"
    ]
    if spec.secrets:
        names = ", ".join(spec.secrets)
        notes.append(f"secrets are not in this script; export {names} before sbatch")
    return tuple(notes)


def export_lines(envs: Mapping[str, Any]) -> str:
    """Return shell text that exports variables byte for byte."""
    return "\n".join(_export_lines(envs)) + "\n"


def _export_lines(envs: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted(envs.items()):
        yield f"export {name}={shlex.quote('' if value is None else str(value))}"


def _quoted(value: str) -> str:
    """Quote a value for the shell; a directory known only to the job remains a variable."""
    variable, slash, rest = value.partition("/")
    if variable == "$SLURM_SUBMIT_DIR":
        return f"{variable}{slash}{shlex.quote(rest) if rest else ''}"
    return shlex.quote(value) if value else ""


def _argument(option: str) -> str:
    """Quote an option in a script's head, where sbatch supports double quotes only."""
    return (
        option
        if re.fullmatch(r"[^\s\"'\\#]+", option)
        else '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'
    )
