"""A `JobSpec` becomes the SkyPilot task that launchers are given.

The base task is loaded from `sky_tasks/`, typed fields are laid over it, and the result is dumped: never text
templates, so that no string of a user can become syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import yaml
from holdfast_worker.wire import Env

from holdfast.domain.spec import Engine, JobSpec
from holdfast.errors import BadJobFile, Flaw

_UNABLE_LOCALLY: Final = {
    "file_mounts": "put the files under workdir, or read them from where they are",
    "secrets": "set them in the environment of the service, which local programs inherit",
    "volumes": "use a folder of this machine",
    "service": "submit a job that ends",
    "pool": "leave it out",
}
_UNICODE_BREAK: Final = re.compile("[\x85\u2028\u2029]")
_IDLE_LOCALLY: Final = frozenset({"infra", "use_spot", "job_recovery"})


@dataclass(frozen=True, slots=True)
class Rendered:
    """A task, exactly as it would be launched."""

    task: Mapping[str, Any]
    text: str
    """The same as YAML."""
    notes: tuple[str, ...]
    """What has no effect where the job would run, as sentences."""


def render(spec: JobSpec) -> Rendered:
    """The SkyPilot task of a job.

    Raises:
        BadJobFile: the job asks for something that its engine cannot do.
    """
    base = _base()
    task = {
        "name": spec.name,
        "workdir": spec.workdir,
        "num_nodes": spec.num_nodes,
        "resources": {**base["resources"], **spec.resources},
        "envs": {**base["envs"], **_worker_envs(spec), **spec.envs},
        "setup": spec.setup,
        "run": spec.run,
        **spec.more,
    }
    task = {key: value for key, value in task.items() if value is not None}
    notes = _check_local(spec) if spec.engine is Engine.LOCAL else ()
    if spec.holdfast.checkpoint is None:
        notes += (
            "no checkpoint store: a preempted job starts again at step 0; add holdfast.checkpoint.store",
        )
    return Rendered(task, dump(task), notes)


def dump(task: Mapping[str, Any]) -> str:
    """A task as YAML that any YAML 1.1 loader reads back unchanged."""
    text: str = yaml.dump(
        dict(task), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text


def load(text: str) -> dict[str, Any]:
    """The task of a stored rendering."""
    task: dict[str, Any] = yaml.safe_load(text)
    return task


class _Dumper(yaml.SafeDumper):
    """Safe, with scripts as blocks, since people read what will be launched."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Where a block cannot hold the text exactly, the emitter itself falls back to quotes; only at Unicode's own
    # line breaks it errs, and a loader would read a space.
    style = '"' if _UNICODE_BREAK.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _worker_envs(spec: JobSpec) -> dict[str, str]:
    envs = {Env.NAME.value: spec.name}
    if checkpoint := spec.holdfast.checkpoint:
        envs |= {
            Env.STORE.value: checkpoint.store,
            Env.EVERY.value: checkpoint.every,
            Env.KEEP.value: str(checkpoint.keep),
        }
    return envs


def _check_local(spec: JobSpec) -> tuple[str, ...]:
    flaws = tuple(
        Flaw(f"#/{word}", f"cannot be done on infra local; {way_out}")
        for word, way_out in _UNABLE_LOCALLY.items()
        if word in spec.more
    )
    if flaws:
        raise BadJobFile(flaws)
    return tuple(
        f"resources.{word} has no effect on infra local: nodes are processes of this machine"
        for word in spec.resources
        if word not in _IDLE_LOCALLY
    )


def _base() -> dict[str, Any]:
    return load((_folder() / "train.yaml").read_text(encoding="utf-8"))


def _folder() -> Traversable:
    """`sky_tasks` of an installed wheel, or of the checkout in an editable install."""
    packaged = resources.files("holdfast") / "_sky_tasks"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "sky_tasks"
