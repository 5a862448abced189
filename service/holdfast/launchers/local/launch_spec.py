"""The spec of a launch, handed to its supervisor.

It contains secrets and is not written to disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LaunchRefused
from holdfast.launchers.local.sandbox import Sandbox, Sandboxes
from holdfast.ports import Launch


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpec:
    """Everything that the placements of one launch have in common."""

    key: str
    job_id: str
    first_attempt: int
    max_failures: int
    nodes: int
    setup: str
    """Script that each node runs first; empty if there is none."""
    run: str
    env: Mapping[str, str]
    """Variables of the task and of the launch, which take precedence."""
    workdir: str | None
    """Directory copied to the nodes; None: the nodes start with an empty one."""
    cell: Sandbox | None
    """Sandbox of a confined job; None: its nodes have the service's rights."""
    climate: MarketParameters
    """The market at submission; new settings of the service do not affect running launches."""
    restart_s: float = 0
    """Pause before the first restart after a failure of the program."""

    @classmethod
    def from_launch(
        cls,
        launch: Launch,
        climate: MarketParameters,
        cells: Sandboxes | None,
        restart_s: float = 0,
    ) -> LaunchSpec:
        """Derive the spec of a launch on this machine.

        Raises:
            LaunchRefused: the task needs something that this machine does not support.
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
            cell=_sandbox(launch, cells),
            climate=climate.for_task(task),
            restart_s=restart_s,
        )

    def json(self) -> str:
        """Serialize the spec; the text contains the job's secrets and the worker's token."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def parse(cls, text: str) -> LaunchSpec:
        """Parse a serialized spec."""
        raw = json.loads(text)
        climate, cell = raw.pop("climate"), raw.pop("cell", None)
        cell = Sandbox(**cell) if cell else None
        return cls(**raw, cell=cell, climate=MarketParameters.parse(climate))


def _sandbox(launch: Launch, cells: Sandboxes | None) -> Sandbox | None:
    if not launch.folders.is_confined:
        return None
    if cells is None:
        raise LaunchRefused("this service does not run users' jobs on its own machine")
    return cells.for_launch(launch.key, launch.job_id)


def _nodes(count: Any) -> int:
    if count is None:
        return 1
    if not isinstance(count, int) or count < 1:
        raise LaunchRefused(f"num_nodes is {count!r}; it must be an integer of at least 1")
    return count


def _text(task: Mapping[str, Any], name: str) -> str:
    text = task.get(name) or ""
    if not isinstance(text, str):
        raise LaunchRefused(f"{name} is {text!r}; it must be the text of a script")
    _check_encodable(name, text)
    return text


def _variables(raw: Mapping[Any, Any]) -> dict[str, str]:
    env = {str(name): "" if value is None else str(value) for name, value in raw.items()}
    for name, value in env.items():
        _check_encodable(f"the variable {name}", name + value)
        if not name or "=" in name or "\0" in name + value:
            raise LaunchRefused(
                f"the variable {name!r} contains '=' or a null character and cannot be set"
            )
    return env


def _check_encodable(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LaunchRefused(
            f"{what} contains half of a surrogate pair, which cannot be encoded as UTF-8"
        ) from error


def _workdir(raw: Any) -> str | None:
    if raw is None:
        return None
    if not isinstance(raw, str):
        raise LaunchRefused("workdir is not a path; on infra local it must be a directory")
    path = Path(raw).expanduser()
    if not path.is_absolute():
        raise LaunchRefused(
            f"workdir {raw!r} is relative to an unknown directory; write an absolute path"
        )
    if not path.is_dir():
        raise LaunchRefused(f"workdir {raw!r} is not a directory on this machine")
    return str(path)
