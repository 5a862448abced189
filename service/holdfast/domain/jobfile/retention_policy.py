"""Retention policy of a job file: keep the newest, one per interval, and the best.

The interval is in steps, and the best are by a metric. Values are stored as written, so that a
stored job reads like its file. The properties return the parsed values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

MIN_KEPT: Final = 2
"""Minimum of newest checkpoints. With one, a corrupt checkpoint in the store would lose the job's progress."""
MAX_KEPT: Final = 1000
"""Maximum of newest checkpoints. A lower value refuses real policies; a higher value lets a typing error keep everything."""
MAX_METRIC_CHARS: Final = 200

_EVERY: Final = re.compile(r"([1-9]\d{0,17})\s*steps?")


class Mode(StrEnum):
    """Whether lower or higher values of a metric are better."""

    MIN = "min"
    MAX = "max"


def _every(value: Any) -> Any:
    if value is None or (isinstance(value, str) and _EVERY.fullmatch(value.strip().lower())):
        return value
    unit = f"; write {value} steps" if isinstance(value, int) and value > 0 else ""
    msg = f"{value!r} is not a count of steps{unit or '; write one such as 1000 steps'}"
    raise ValueError(msg)


class Best(BaseModel):
    """Keep the best checkpoints by a logged metric."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Annotated[str, Field(min_length=1, max_length=MAX_METRIC_CHARS)]
    """Metric name as in `run.log(val_loss=...)`."""
    mode: Mode
    """Has no default: a wrong guess would keep the worst checkpoints."""
    count: Annotated[int, Field(ge=1, le=MAX_KEPT)] = 1

    @model_validator(mode="before")
    @classmethod
    def _mapping(cls, value: Any) -> Any:
        if not isinstance(value, Mapping | cls):
            msg = f"{value!r} is incomplete; write {{metric: val_loss, mode: min}}"
            raise ValueError(msg)  # noqa: TRY004 - pydantic reports a ValueError
        return value


class RetentionPolicy(BaseModel):
    """Retention of complete checkpoints. A checkpoint is kept if any rule selects it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    last: Annotated[int, Field(ge=MIN_KEPT, le=MAX_KEPT)] = 3
    """Number of newest checkpoints to keep."""
    every: Annotated[str | None, BeforeValidator(_every)] = None
    """Keep the first checkpoint of each interval of this many steps permanently; None to disable."""
    best: Best | None = None
    """Keep the best checkpoints by a metric; None to disable."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """Accept a plain number as `last`."""
        if isinstance(value, Mapping | cls):
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            msg = f"{value!r} is not a retention policy; write a number such as 3, or a mapping of last, every and best"
            raise ValueError(msg)  # noqa: TRY004 - pydantic reports a ValueError
        if not MIN_KEPT <= value <= MAX_KEPT:
            msg = f"{value} is not between {MIN_KEPT} and {MAX_KEPT}; with one, a corrupt checkpoint would lose all progress"
            raise ValueError(msg)
        return {"last": value}

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> Any:
        return self.last if self.is_by_number_alone else dump(self)

    @property
    def is_by_number_alone(self) -> bool:
        """Whether a worker, which supports only a number, can apply the policy."""
        return self.every is None and self.best is None

    @property
    def every_steps(self) -> int | None:
        """Interval in steps of permanent checkpoints; None without one."""
        found = _EVERY.fullmatch((self.every or "").strip().lower())
        return int(found[1]) if found else None
