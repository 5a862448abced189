"""The `plan` of a job file: what is optimized, and with which policy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from holdfast.domain.jobfile.limits import Span, parse_seconds
from holdfast.domain.jobfile.resources import SpecModel

POLICIES: Final = ("holdfast", "threshold", "uniform-progress", "greedy", "on-demand")
"""Policies of the objective `cheapest`; `docs/reference/planning.md` explains them."""
NO_MARGIN: Final = "0"


class Objective(StrEnum):
    """What a plan optimizes."""

    CHEAPEST = "cheapest"
    """The least cost that keeps the deadline."""
    FASTEST = "fastest"
    """The earliest end within the budget."""


def _policy(value: Any) -> str:
    if isinstance(value, str) and value in POLICIES:
        return value
    near = difflib.get_close_matches(str(value), POLICIES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(POLICIES)}"
    raise ValueError(f"{value!r} is an unknown policy; {hint}")


def _objective(value: Any) -> str:
    if isinstance(value, str) and value in tuple(Objective):
        return value
    raise ValueError(f"{value!r} is no objective; write {' or '.join(Objective)}")


def _margin(value: Any) -> str:
    if value == 0 or (isinstance(value, str) and value.strip() in {"0", "0s", "0m", "0h"}):
        return NO_MARGIN
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write a duration such as 10m, or 0")  # noqa: TRY004
    parse_seconds(value)
    return value


class PlanSpec(SpecModel):
    """How a job's nodes are chosen while it runs."""

    objective: Annotated[Objective, BeforeValidator(_objective)] = Objective.CHEAPEST
    work: Span | None = None
    """Training time of the whole job without interruptions; None if it is that of the job's parent.

    Measured steps replace it.
    """
    policy: Annotated[str, BeforeValidator(_policy)] | None = None
    """Policy of the objective `cheapest`; None for `holdfast`."""
    on_demand: bool = True
    """Whether on-demand nodes may be used."""
    margin: Annotated[str, BeforeValidator(_margin)] = "10m"
    """Time in reserve before on-demand nodes are requested, as for an outage of the service."""

    @property
    def work_s(self) -> int | None:
        """Training time in seconds; None if it is that of the job's parent."""
        return None if self.work is None else parse_seconds(self.work)

    @property
    def margin_s(self) -> int:
        """Reserve in seconds."""
        return 0 if self.margin == NO_MARGIN else parse_seconds(self.margin)

    @property
    def policy_name(self) -> str:
        """The policy that decides."""
        return "fastest" if self.objective is Objective.FASTEST else self.policy or POLICIES[0]

    def flaws(
        self, *, has_deadline: bool, has_store: bool, has_parent: bool
    ) -> Iterator[tuple[str, str]]:
        """What contradicts the rest of the job file, each with its pointer."""
        plan = "#/holdfast/plan"
        if not has_store:
            yield (
                plan,
                "needs holdfast.checkpoint.store: without checkpoints, each move restarts the job at step 0; write one",
            )
        if self.objective is Objective.CHEAPEST and not has_deadline:
            yield (
                f"{plan}/objective",
                "is cheapest, which needs holdfast.limits.deadline; write one, or objective: fastest",
            )
        if self.objective is Objective.FASTEST and self.policy is not None:
            yield (
                f"{plan}/policy",
                f"is {self.policy!r}, which serves only objective: cheapest; remove one of the two",
            )
        if self.work is None and not has_parent:
            yield (
                f"{plan}/work",
                "is missing; write the training time of the whole job without interruptions, such as 31h",
            )
