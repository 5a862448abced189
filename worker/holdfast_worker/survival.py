"""Survival: how long a job has lived over all its attempts, how often it was cut short, and what follows for the next. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from holdfast_worker.rundir import Left

PRIOR_S: Final = 2 * 3600.0
"""Between two losses of spot capacity, before enough were seen. Too long loses work at each preemption, too short stalls
training for nothing; the optimum is flat: off by four, the interval is off by two and the waste by a quarter."""

ENOUGH: Final = 5
"""Losses after which nothing is assumed any more. Fewer and one bad hour decides how often a job saves; more and it goes by
what was assumed for days."""

REMEMBERED: Final = 10
"""Losses of which the mean is taken. More and a market that has turned is believed to be the old one for days; fewer and chance
alone moves the interval from rung to rung."""

SHORTEST_S: Final = 60.0
"""Between two losses, in any case: of attempts that died before their first checkpoint nobody knows how long they lived."""

OTHER_RANK_GONE: Final = ("gloo/transport", "torch.distributed.Dist")
"""In the error of a rank to which another one does not answer any more: of the groups of gloo, and of those of NCCL."""


@dataclass(frozen=True, slots=True)
class Survival:
    """What is known of how long placements of a job last."""

    losses: int = 0
    """Attempts that were cut short."""
    spans_s: tuple[float, ...] = ()
    """How long the job lived from one loss to the next, over all attempts in between, as far as there is evidence; the newest
    last, and no more than `REMEMBERED` of them."""
    since_s: float = 0.0
    """How long it has lived since the last."""

    def after(self, lived_s: float) -> Survival:
        """The same after an attempt has lived so long."""
        return replace(self, since_s=self.since_s + lived_s)

    def lost(self) -> Survival:
        """The same after an attempt was cut short."""
        spans_s = (*self.spans_s, self.since_s)[-REMEMBERED:]
        return Survival(self.losses + 1, spans_s, 0.0)

    @property
    def between_s(self) -> float:
        """Seconds from one loss to the next, as reckoned: the mean, in which `PRIOR_S` stands for each loss that is missing
        from `ENOUGH`."""
        missing = max(0, ENOUGH - len(self.spans_s))
        lived_s = sum(self.spans_s) + self.since_s
        return max(SHORTEST_S, (lived_s + missing * PRIOR_S) / (len(self.spans_s) + missing))


def was_cut_short(left: Left) -> bool:
    """Whether an attempt that left so was taken away, as far as its own words tell.

    A notice is a loss, and so is a rank that vanished without a word. What has finished is none, nor what its own script, a
    wrong setting or a store has ended.
    """
    if left.reason == "failed":
        return any(words in left.detail for words in OTHER_RANK_GONE)
    return left.reason == "preempted"
