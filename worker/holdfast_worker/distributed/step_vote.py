"""What happens between two steps, decided from the votes of all ranks, so that all decide the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Self

UNKNOWN_LEFT_S: Final = 30.0
"""What a notice without a deadline is taken to leave: the shortest that any cloud gives.
Larger and a final save may be cut off; smaller and one that had time is not begun."""

SAFETY: Final = 0.7
"""Share of the time left that a final checkpoint may be expected to take. Larger and uploads are cut off by the end
of the node; smaller and work is given up that would have been saved."""

NO_CLAIM: Final = -1e301
"""What a rank votes in a column in which it has nothing to say: less than any rank that has."""

TOLERANCE: Final = 0.1
"""By how much of the smaller one the norms of gradients may differ. What was averaged is the same to the last bit: larger hides a
rank whose gradients are its own, smaller gains nothing."""

TOLERANCE_OF_WEIGHTS: Final = 0.001
"""The same of weights, which no average makes alike again. Larger hides ranks that began with other weights, smaller blames kinds of
GPUs that round differently."""


class StepDecision(Enum):
    """What all ranks do at this boundary."""

    GO_ON = auto()
    SAVE = auto()
    LEAVE = auto()
    """Without a new checkpoint: none is needed, or none would be durable in time."""
    SAVE_AND_LEAVE = auto()
    FINISH_AND_LEAVE = auto()
    """Let the save under way become durable first. What can be done with the time that is left then is decided anew."""
    GIVE_WAY = auto()
    """To a newer placement of the job: leave at once."""
    PART = auto()
    """The ranks do not train the same model any more: leave, and save nothing of it."""
    STOP = auto()
    """Checkpoints cannot be saved any more, and the job is not to go on without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What one rank has to say, or all of them together: of every column, the largest number counts."""

    is_leaving: bool = False
    is_due: bool = False
    is_busy: bool = False
    """A save is under way."""
    is_broken: bool = False
    """The own part of the save under way could not be written."""
    is_fenced: bool = False
    """A newer placement took over."""
    left_s: float | None = None
    """Until the node goes; None unless leaving. Together: of the rank that has the least."""
    durable_s: float | None = None
    """What a checkpoint takes at full speed, nine times in ten or less; None before one was measured."""
    norm: float | None = None
    """Of the gradients; None unless they were looked at. Together: the largest."""
    least_norm: float | None = None
    """The same, and together the smallest."""
    weight: float | None = None
    """The norm of the weights that belong to them. Together: the largest."""
    least_weight: float | None = None
    """The same, and together the smallest."""

    @property
    def is_apart(self) -> bool:
        """Whether the gradients of the ranks are not the same, or their weights."""
        return differ(self.norm, self.least_norm) or differ(
            self.weight, self.least_weight, TOLERANCE_OF_WEIGHTS
        )

    def numbers(self) -> list[float]:
        """The vote as columns of which the maximum can be taken."""
        return [
            float(self.is_leaving),
            float(self.is_due),
            float(self.is_busy),
            float(self.is_broken),
            float(self.is_fenced),
            NO_CLAIM if self.left_s is None else -self.left_s,
            NO_CLAIM if self.durable_s is None else self.durable_s,
            NO_CLAIM if self.norm is None else self.norm,
            NO_CLAIM if self.least_norm is None else -self.least_norm,
            NO_CLAIM if self.weight is None else self.weight,
            NO_CLAIM if self.least_weight is None else -self.least_weight,
        ]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Self:
        """The vote that these columns mean."""
        leaving, due, busy, broken, fenced, *claims = numbers
        minus_left_s, durable_s, norm, minus_norm, weight, minus_weight = (
            None if claim == NO_CLAIM else claim for claim in claims
        )
        return cls(
            is_leaving=leaving > 0,
            is_due=due > 0,
            is_busy=busy > 0,
            is_broken=broken > 0,
            is_fenced=fenced > 0,
            left_s=None if minus_left_s is None else -minus_left_s,
            durable_s=durable_s,
            norm=norm,
            least_norm=None if minus_norm is None else -minus_norm,
            weight=weight,
            least_weight=None if minus_weight is None else -minus_weight,
        )


def decide(votes: Vote, *, is_saved: bool, despairs: bool = False) -> StepDecision:
    """What to do after the votes of all ranks; `is_saved` says whether this very step is in a checkpoint already, and
    `despairs` whether the run is to stop as it cannot save."""
    if votes.is_fenced:
        return StepDecision.GIVE_WAY
    if votes.is_apart:
        return StepDecision.PART
    if votes.is_leaving:
        return _leave(votes, is_saved=is_saved)
    if despairs:
        return StepDecision.STOP
    if votes.is_due and not votes.is_busy:
        return StepDecision.SAVE
    return StepDecision.GO_ON


def _leave(votes: Vote, *, is_saved: bool) -> StepDecision:
    if votes.is_busy:
        return StepDecision.FINISH_AND_LEAVE
    return StepDecision.SAVE_AND_LEAVE if not is_saved and fits(votes) else StepDecision.LEAVE


def differ(most: float | None, least: float | None, tolerance: float = TOLERANCE) -> bool:
    """Whether two norms are not those of the same; None where nobody looked."""
    return most is not None and least is not None and most - least > tolerance * least


def fits(votes: Vote) -> bool:
    """Whether a final checkpoint can be durable before the node goes. Nothing measured yet: try."""
    if votes.durable_s is None:
        return True
    left_s = UNKNOWN_LEFT_S if votes.left_s is None else votes.left_s
    return votes.durable_s < SAFETY * left_s
