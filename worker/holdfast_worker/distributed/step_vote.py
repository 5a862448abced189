"""Decides between two steps, from the votes of all ranks, so that all ranks decide alike.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Self

UNKNOWN_LEFT_S: Final = 30.0
"""Assumed time left after a notice without a deadline: the shortest that any cloud gives.
A higher value risks an interrupted final save; a lower value skips a save that would have had time."""

DEADLINE_SAFETY: Final = 0.7
"""Share of the time left that a final checkpoint may take. A higher value risks uploads that
the end of the node interrupts; a lower value skips saves that would have succeeded."""

NO_VALUE: Final = -1e301
"""The vote of a rank without a value in a column: less than any value."""

TOLERANCE: Final = 0.1
"""Relative difference allowed between gradient norms. Averaged gradients are equal to the
last bit: a higher value hides a rank with separate gradients; a lower value gains nothing."""

WEIGHT_TOLERANCE: Final = 0.001
"""Relative difference allowed between weight norms, which no averaging restores. A higher
value hides ranks that began with different weights; a lower value reports GPU models that round differently."""


class StepDecision(Enum):
    """The action of all ranks at a step boundary."""

    CONTINUE = auto()
    SAVE = auto()
    SNAPSHOT = auto()
    """Copy the state into the memory of the nodes, without a checkpoint in the store."""
    LEAVE = auto()
    """Without a new checkpoint: none is needed, or none would be durable in time."""
    SAVE_AND_LEAVE = auto()
    FINISH_AND_LEAVE = auto()
    """Wait until the running save is durable, then decide again with the remaining time."""
    STOP_FENCED = auto()
    """Fenced out by a newer attempt of the job: exit at once."""
    STOP_DESYNC = auto()
    """The ranks train diverged models: exit without saving."""
    STOP_UNSAVED = auto()
    """Checkpoints can no longer be saved, and the job must not continue without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVote:
    """The vote of one rank, or the combined vote: the maximum of each column."""

    is_leaving: bool = False
    is_due: bool = False
    is_busy: bool = False
    """A save is running."""
    is_broken: bool = False
    """This rank failed to write its shard of the running save."""
    is_fenced: bool = False
    """A newer attempt took over."""
    left_s: float | None = None
    """Time until the node is terminated; None unless leaving. Combined: the minimum."""
    durable_s: float | None = None
    """90th percentile of a checkpoint's duration at full speed; None before the first
    measurement."""
    norm: float | None = None
    """Norm of the gradients; None without a check. Combined: the maximum."""
    least_norm: float | None = None
    """Norm of the gradients; None without a check. Combined: the minimum."""
    weight: float | None = None
    """Norm of the matching weights. Combined: the maximum."""
    least_weight: float | None = None
    """Norm of the matching weights. Combined: the minimum."""
    own_bytes: int = 0
    """Size of this rank's own state if the ranks exchange copies. Combined: the maximum."""
    has_changed: bool = False
    """Whether that state has to be exchanged again."""
    is_late: bool = False
    """Whether it has changed since its exchange in the step."""
    moves: bool = False
    """Whether ranks of a missing node move to its replacement."""
    saves: int = 0
    """Saves that this rank has begun. Combined: the maximum."""
    failures: int = 0
    """Consecutive failed saves that this rank knows of. Combined: the maximum."""
    is_snapshot_due: bool = False
    """A snapshot in memory is due."""
    is_copying: bool = False
    """A snapshot is being copied into memory."""
    has_copy_failed: bool = False
    """This rank failed to copy its part of the last snapshot."""
    lacks_room: bool = False
    """There is no memory for copies of this rank's part."""

    @property
    def is_desynced(self) -> bool:
        """Whether gradients or weights differ between the ranks."""
        return differ(self.norm, self.least_norm) or differ(
            self.weight, self.least_weight, WEIGHT_TOLERANCE
        )

    def numbers(self) -> list[float]:
        """The vote as columns for a maximum over ranks."""
        return [
            float(self.is_leaving),
            float(self.is_due),
            float(self.is_busy),
            float(self.is_broken),
            float(self.is_fenced),
            NO_VALUE if self.left_s is None else -self.left_s,
            NO_VALUE if self.durable_s is None else self.durable_s,
            NO_VALUE if self.norm is None else self.norm,
            NO_VALUE if self.least_norm is None else -self.least_norm,
            NO_VALUE if self.weight is None else self.weight,
            NO_VALUE if self.least_weight is None else -self.least_weight,
            float(self.own_bytes),
            float(self.has_changed),
            float(self.is_late),
            float(self.moves),
            float(self.saves),
            float(self.failures),
            float(self.is_snapshot_due),
            float(self.is_copying),
            float(self.has_copy_failed),
            float(self.lacks_room),
        ]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        """The vote that `numbers` encoded."""
        leaving, due, busy, broken, fenced, *rest = numbers
        *rest, is_snapshot_due, is_copying, has_copy_failed, lacks_room = rest
        *claims, own_bytes, has_changed, is_late, moves, saves, failures = rest
        minus_left_s, durable_s, norm, minus_norm, weight, minus_weight = (
            None if claim == NO_VALUE else claim for claim in claims
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
            own_bytes=int(own_bytes),
            has_changed=has_changed > 0,
            is_late=is_late > 0,
            moves=moves > 0,
            saves=int(saves),
            failures=int(failures),
            is_snapshot_due=is_snapshot_due > 0,
            is_copying=is_copying > 0,
            has_copy_failed=has_copy_failed > 0,
            lacks_room=lacks_room > 0,
        )


def decide(votes: StepVote, *, is_saved: bool, has_save_failed: bool = False) -> StepDecision:
    """Decide from the combined votes.

    `is_saved`: this step is already in a checkpoint. `has_save_failed`: stop because saving fails.
    """
    if votes.is_fenced:
        return StepDecision.STOP_FENCED
    if votes.is_desynced:
        return StepDecision.STOP_DESYNC
    if votes.is_leaving:
        return _leave(votes, is_saved=is_saved)
    if has_save_failed:
        return StepDecision.STOP_UNSAVED
    if votes.is_busy or votes.is_copying:  # Both read the staging buffer.
        return StepDecision.CONTINUE
    snapshot = StepDecision.SNAPSHOT if votes.is_snapshot_due else StepDecision.CONTINUE
    return StepDecision.SAVE if votes.is_due else snapshot


def _leave(votes: StepVote, *, is_saved: bool) -> StepDecision:
    if votes.is_busy:
        return StepDecision.FINISH_AND_LEAVE
    return (
        StepDecision.SAVE_AND_LEAVE
        if not is_saved and can_save_in_time(votes)
        else StepDecision.LEAVE
    )


def differ(most: float | None, least: float | None, tolerance: float = TOLERANCE) -> bool:
    """Whether two norms differ by more than the tolerance; False without a check."""
    return most is not None and least is not None and most - least > tolerance * least


def can_save_in_time(votes: StepVote) -> bool:
    """Whether a final checkpoint can be durable in time; assumed before any measurement."""
    if votes.durable_s is None:
        return True
    left_s = UNKNOWN_LEFT_S if votes.left_s is None else votes.left_s
    return votes.durable_s < DEADLINE_SAFETY * left_s
