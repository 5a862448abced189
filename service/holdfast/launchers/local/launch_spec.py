"""What a supervisor is to run, as it is handed over. It holds secrets, and is kept in no file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LaunchRefused
from holdfast.launchers.local.sandbox import Sandbox, Sandboxes
from holdfast.ports import Launch


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpec:
    """One launch, understood: everything its placements have in common."""

    key: str
    job_id: str
    first_attempt: int
    max_failures: int
    nodes: int
    setup: str
    """Script that every node runs first; empty when there is none."""
    run: str
    env: Mapping[str, str]
    """Variables of the task and of the launch; the launch's own win."""
    workdir: str | None
    """Directory whose files the nodes get; None for empty ones."""
    cell: Sandbox | None
    """Where a confined job lives; None: its nodes have the service's rights."""
    climate: MarketParameters
    """The market at the time of the submit: other settings of a restarted service change nothing that runs."""

    @classmethod
    def of(cls, launch: Launch, climate: MarketParameters, cells: Sandboxes | None) -> LaunchSpec:
        """The order that a launch amounts to on this machine.

        Raises:
            LaunchRefused: the task asks for something that this machine can never do.
        """
        task = launch.task
        return cls(
            key=launch.key,
            job_id=launch.job_id,
            first_attempt=launch.first_attempt,
            max_failures=launch.max_failures,
            nodes=_nodes(task.get("num_nodes")),
            setup=_text(task, "setup"),
            run=_text(task, "run"),
            env=_variables({**(task.get("envs") or {}), **launch.secrets, **launch.env}),
            workdir=_workdir(task.get("workdir")),
            cell=_cell(launch, cells),
            climate=climate.met_by(task),
        )

    def json(self) -> str:
        """The order as text; secrets of the job and the worker's token are in it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> LaunchSpec:
        """The order that was made into this text."""
        raw = json.loads(text)
        climate, cell = raw.pop("climate"), raw.pop("cell", None)
        cell = Sandbox(**cell) if cell else None
        return cls(
            **raw,
            cell=cell,
            climate=MarketParameters(**{**climate, "zones": tuple(climate["zones"])}),
        )


def _cell(launch: Launch, cells: Sandboxes | None) -> Sandbox | None:
    if not launch.folders.is_confined:
        return None
    if cells is None:
        raise LaunchRefused("jobs of users do not run on the service's own machine")
    return cells.of_launch(launch.key, launch.job_id)


def _nodes(count: Any) -> int:
    if count is None:
        return 1
    if not isinstance(count, int) or count < 1:
        raise LaunchRefused(f"num_nodes is {count!r}; it must be a number of at least 1")
    return count


def _text(task: Mapping[str, Any], name: str) -> str:
    text = task.get(name) or ""
    if not isinstance(text, str):
        raise LaunchRefused(f"{name} is {text!r}; it must be the text of a script")
    _writable(name, text)
    return text


def _variables(raw: Mapping[Any, Any]) -> dict[str, str]:
    env = {str(name): "" if value is None else str(value) for name, value in raw.items()}
    for name, value in env.items():
        _writable(f"the variable {name}", name + value)
        if not name or "=" in name or "\0" in name + value:
            raise LaunchRefused(f"the variable {name!r} cannot be set: no system takes such text")
    return env


def _writable(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LaunchRefused(f"{what} holds half of a character, which cannot be written") from error


def _workdir(raw: Any) -> str | None:
    if raw is None:
        return None
    if not isinstance(raw, str):
        raise LaunchRefused("workdir is not a path; on this machine it must be a directory")
    path = Path(raw).expanduser()
    if not path.is_absolute():
        raise LaunchRefused(
            f"workdir {raw!r} is relative, and nobody knows to what; give all of it"
        )
    if not path.is_dir():
        raise LaunchRefused(f"workdir {raw!r} is not a directory on this machine")
    return str(path)
