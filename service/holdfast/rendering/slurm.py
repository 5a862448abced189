"""A task as a batch job of Slurm: options of sbatch, and the script that every job runs, with this job's words before it.

The script is `sky_tasks/train.sbatch`. Only its head is another for each job, and of that every value is quoted: no string of a
user can become syntax.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_worker.protocol.environment import Env

from holdfast.domain.jobfile.slurm_options import Slurm, slurm_flaws
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadJobFile, Flaw
from holdfast.rendering.base_task import sky_tasks

_FROM_HERE: Final = "# ---- From here on all jobs are alike ----\n"
_UNABLE: Final = {
    "workdir": "clone the repository, and write the folder where it lies",
    "file_mounts": "put the files under workdir, or read them from storage that the nodes share",
    "volumes": "use a folder that the nodes share",
    "service": "submit a job that ends",
    "pool": "leave it out",
    "execution": "leave it out, since a job file holds one task",
}
_USED: Final = frozenset({"infra", "accelerators", "cpus", "memory"})
_IDLE: Final = frozenset({"use_spot", "job_recovery"})
_WORKER: Final = re.compile(r"holdfast[-_]worker")


def notes_of_slurm(spec: JobSpec) -> tuple[str, ...]:
    """What has no effect on Slurm, as sentences.

    Raises:
        BadJobFile: the job asks for something that cannot be done there.
    """
    flaws = tuple(
        Flaw(f"#/{word}", f"cannot be done on Slurm; {way_out}")
        for word, way_out in _UNABLE.items()
        if word in spec.more
    )
    task = {"resources": spec.resources, "config": spec.more.get("config")}
    if flaws := (*flaws, *slurm_flaws(task)):
        raise BadJobFile(flaws)
    notes = [
        f"resources.{word} has no effect on Slurm; write what its sbatch calls so under config.slurm.sbatch_options"
        for word in spec.resources
        if word not in _USED | _IDLE
    ]
    if "gpus-per-node" in (options := Slurm.of(task).options) and not options.keys() & {
        "constraint",
        "gres",
    }:
        notes.append(
            "resources.accelerators: of Slurm only their number is asked for, as each cluster has names of its own for kinds; "
            "write constraint or gres under config.slurm.sbatch_options"
        )
    return tuple(notes)


def options_of(task: Mapping[str, Any]) -> list[str]:
    """The options of sbatch that follow from a task; name, folder and output are not among them."""
    asked = Slurm.of(task)
    fixed: dict[str, str | bool] = {
        "nodes": str(task.get("num_nodes") or 1),
        "ntasks-per-node": "1",
        **asked.options,
        "open-mode": "append",
        ("requeue" if asked.requeue else "no-requeue"): True,
        # To the script alone, which asks the ranks to save; in time before the limit.
        "signal": f"B:USR1@{asked.notice_s}",
    }
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in fixed.items()]


def script(task: Mapping[str, Any], options: Sequence[str], words: Mapping[str, str]) -> str:
    """The whole script: `options` at its head, `words` as variables of the shell that runs it."""
    asked = Slurm.of(task)
    needs = ("torch",) if _WORKER.search(f"{task.get('setup')}{task['run']}") else ()
    probe = {
        "PROBE": asked.probe,
        "PROBE_PACKAGES": " ".join(needs if asked.packages is None else asked.packages),
    }
    said = {**words, "SETUP": str(task.get("setup") or ""), "RUN": str(task["run"]), **probe}
    body = (sky_tasks() / "train.sbatch").read_text(encoding="utf-8").partition(_FROM_HERE)[2]
    head = [f"#SBATCH {_argument(option)}" for option in options]
    lines = [f"{name}={_quoted(value)}" for name, value in said.items()]
    return "\n".join(["#!/bin/bash", *head, "", *lines, "", _FROM_HERE + body])


def by_sbatch(spec: JobSpec, task: Mapping[str, Any]) -> str:
    """A script that people hand to sbatch themselves, in a folder that the nodes share."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.name).strip("-.") or "job"
    where = [f"--job-name={name}", "--output=logs/%x-%j.out"]
    # No service knows of these checkpoints: the worker removes the old ones.
    envs = {key: value for key, value in task.get("envs", {}).items() if key != Env.TIDY}
    exports = "\n".join(_exports({**envs, Env.JOB.value: name}))
    return script(
        task,
        [*where, *options_of(task)],
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


def notes_of_sbatch(spec: JobSpec) -> tuple[str, ...]:
    """What is not in that script, as sentences."""
    notes = ["before sbatch: mkdir -p logs, as Slurm does not make the folder of its output"]
    if spec.secrets:
        names = ", ".join(spec.secrets)
        notes.append(f"secrets are not in this script; export {names} before sbatch")
    return tuple(notes)


def exports(envs: Mapping[str, Any]) -> str:
    """Variables as text for a shell, which exports them byte for byte."""
    return "\n".join(_exports(envs)) + "\n"


def _exports(envs: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted(envs.items()):
        yield f"export {name}={shlex.quote('' if value is None else str(value))}"


def _quoted(value: str) -> str:
    """A value as the shell takes it; a folder that only the job knows stays a variable."""
    variable, slash, rest = value.partition("/")
    if variable == "$SLURM_SUBMIT_DIR":
        return f"{variable}{slash}{shlex.quote(rest) if rest else ''}"
    return shlex.quote(value) if value else ""


def _argument(option: str) -> str:
    """An option at the head of a script, where sbatch knows double quotes alone."""
    return (
        option
        if re.fullmatch(r"[^\s\"'\\#]+", option)
        else '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'
    )
