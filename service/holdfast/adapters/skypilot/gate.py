"""SkyPilot's admission policy, spoken from the other side: it asks before it makes a job, and we let a token pass once.

It posts a JSON string that holds JSON, with the whole task as YAML. It wants the same shape back, and takes a 400 for a no
and any other failure for a no, too. Our module `holdfast_gate` in its environment asks about our launches alone; where the
URL itself is its `admin_policy`, it asks about every request of everybody. Jobs that carry no launch token are somebody
else's and pass as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from holdfast.adapters.skypilot.guarantee import PROBE, WIDE_PROBE
from holdfast.adapters.skypilot.order import TOKEN_ENV
from holdfast.bounded_yaml import Bounds, load
from holdfast.errors import BadRequest

_CONSUMING: Final = "jobs.launch"
"""Exactly this: `jobs.launch_controller` and `jobs.launch_cluster` come by here, too, for a job that has passed."""
_PROBING: Final = "validate"
_PROBES: Final = (f"hfl_{PROBE}_", f"hfl_{WIDE_PROBE}_")
_BOUNDS: Final = Bounds(size_bytes=1 << 20, values=500_000)
"""Far beyond those of a job file: a refusal here would keep tasks of others from being launched."""


@dataclass(frozen=True, slots=True)
class Petition:
    """A request that SkyPilot asks about."""

    name: str
    task: str
    config: str
    token: str | None
    """The launch token in it; None for a request that is not ours to judge."""

    @classmethod
    def read(cls, raw: bytes) -> Petition:
        """The request in the body of SkyPilot's question.

        Raises:
            BadRequest: it cannot be understood.
        """
        try:
            told = json.loads(raw)
            told = json.loads(told) if isinstance(told, str) else told
            name, task, config = told["request_name"], told["task"], told["skypilot_config"]
            return cls(str(name), str(task), str(config), _token(load(str(task), _BOUNDS)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRequest(
                "this is not a request that SkyPilot's admission policy sends"
            ) from error

    @property
    def consumes(self) -> bool:
        """Whether its token is used up when it passes."""
        if self.token is None:
            return False
        return self.name == _CONSUMING or (self.name == _PROBING and self.token.startswith(_PROBES))

    def unchanged(self) -> str:
        """The reply that lets it pass as it is: a string, to be sent as JSON once more."""
        return json.dumps({"task": self.task, "skypilot_config": self.config})


def _token(task: Any) -> str | None:
    envs = task.get("envs") if isinstance(task, dict) else None
    token = envs.get(TOKEN_ENV) if isinstance(envs, dict) else None
    return str(token) if token else None
