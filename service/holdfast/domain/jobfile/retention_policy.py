"""Which checkpoints stay, as people write it: the last so many, one every so many steps, the best by a metric.

Words are kept as they were written, so that a stored job reads like its file; the properties are what code counts with.
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

FEWEST: Final = 2
"""Of the last ones. With one, a checkpoint that is damaged in the store would be the end of the job."""
MOST: Final = 1000
"""Of the last ones. Smaller refuses what somebody may want; bigger lets a slip of the finger keep everything."""
LONGEST_METRIC: Final = 200

_EVERY: Final = re.compile(r"([1-9]\d{0,17})\s*steps?")


class Mode(StrEnum):
    """Which values of a metric are the better ones."""

    MIN = "min"
    MAX = "max"


def _every(value: Any) -> Any:
    if value is None or (isinstance(value, str) and _EVERY.fullmatch(value.strip().lower())):
        return value
    unit = f"; write {value} steps" if isinstance(value, int) and value > 0 else ""
    msg = f"{value!r} is not a count of steps{unit or '; write one such as 1000 steps'}"
    raise ValueError(msg)


class Best(BaseModel):
    """The best checkpoints by a number that the script logs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Annotated[str, Field(min_length=1, max_length=LONGEST_METRIC)]
    """Its name, as in `run.log(val_loss=...)`."""
    mode: Mode
    """There is no default: a wrong guess would keep the worst ones."""
    count: Annotated[int, Field(ge=1, le=MOST)] = 1

    @model_validator(mode="before")
    @classmethod
    def _mapping(cls, value: Any) -> Any:
        if not isinstance(value, Mapping | cls):
            msg = f"{value!r} says too little; write {{metric: val_loss, mode: min}}"
            raise ValueError(msg)  # noqa: TRY004 - pydantic makes a flaw of a ValueError
        return value


class RetentionPolicy(BaseModel):
    """Which complete checkpoints stay. One stays if any word asks for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    last: Annotated[int, Field(ge=FEWEST, le=MOST)] = 3
    """The newest so many."""
    every: Annotated[str | None, BeforeValidator(_every)] = None
    """Of each so many steps the first checkpoint, for good; None: none for its step alone."""
    best: Best | None = None
    """None: none for its worth."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """A number alone is that of the last ones."""
        if isinstance(value, Mapping | cls):
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            msg = f"{value!r} is nothing to keep by; write a number such as 3, or a mapping of last, every and best"
            raise ValueError(msg)  # noqa: TRY004 - pydantic makes a flaw of a ValueError
        if not FEWEST <= value <= MOST:
            msg = f"{value} is not between {FEWEST} and {MOST}; with one, a damaged checkpoint would be the end of the job"
            raise ValueError(msg)
        return {"last": value}

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> Any:
        return self.last if self.is_by_number_alone else dump(self)

    @property
    def is_by_number_alone(self) -> bool:
        """Whether a worker, which knows numbers alone, can keep to it."""
        return self.every is None and self.best is None

    @property
    def every_steps(self) -> int | None:
        """Steps of a stretch of which one checkpoint stays; None: there are no stretches."""
        found = _EVERY.fullmatch((self.every or "").strip().lower())
        return int(found[1]) if found else None
