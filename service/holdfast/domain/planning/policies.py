"""Simple policies: greedy, uniform progress, threshold, fastest, one kind of nodes. Pure.

`greedy` and `uniform-progress` with their safety net are those of Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under
Deadlines", NSDI 2024. They start on-demand nodes at the latest moment that leaves time for a second start.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from holdfast.domain.planning.situation import (
    HOUR_S,
    Choice,
    Codes,
    Held,
    Reason,
    Situation,
    cheapest_place,
    holds_spot,
    is_idle_safe,
    is_spot_safe,
)
from holdfast.domain.planning.traces import Flags

DEFAULT_THETA: Final = 0.15
"""Slack of `threshold` as a share of the work that is left.
A lower value waits for spot nodes for longer; a higher value buys on-demand nodes earlier. Costs hardly differ from .15 to .2."""
TRY_EVERY_S: Final = 3600.0
"""Time between two tries to leave on-demand nodes, while nothing is seen of spot nodes.
A lower value pays for more tries; a higher value stays on demand for longer. Two hours cost the same."""
TRY_SLACK: Final = 0.05
"""Slack that a try needs, as a share of the work that is left, beside two starts.
A lower value tries until the deadline forbids it; a higher value gives up spot nodes too early."""
_SPOT, _WAIT, _ON_DEMAND = np.int8(Held.SPOT), np.int8(Held.NOTHING), np.int8(Held.ON_DEMAND)


class OnDemand:
    """On-demand nodes from the start to the end."""

    name = "on-demand"

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        shape = situation.held.shape
        reason = np.full(shape, Reason.ON_DEMAND_STANDS, np.int8)
        return Choice(np.full(shape, _ON_DEMAND), situation.place, reason)


class SpotOnly:
    """Spot nodes whenever they are available, and otherwise none, whatever the deadline."""

    name = "spot"

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        place, is_there = cheapest_place(situation)
        stays = holds_spot(situation)
        holds = np.where(stays | is_there, _SPOT, _WAIT)
        return Choice(
            holds, np.where(stays, situation.place, place), _spot_reasons(stays, is_there)
        )


class Fastest:
    """The earliest end within the budget: what can be had at once, spot nodes first.

    On-demand nodes are taken, and kept, while they can do all that is left within the budget.
    """

    name = "fastest"

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        place, is_there = cheapest_place(situation)
        stays, on_demand = holds_spot(situation), situation.held == Held.ON_DEMAND
        start_s = np.where(on_demand, situation.warm_up_s, situation.on_demand_start_s)
        paid_s = situation.ticks(situation.remaining_s + start_s) * situation.tick_s
        fits = paid_s * (situation.on_demand_price / HOUR_S) <= situation.budget_usd
        takes = ~stays & is_there & ~(on_demand & fits)
        holds = np.where(stays | takes, _SPOT, np.where(fits, _ON_DEMAND, _WAIT))
        buys_reason = np.where(
            on_demand, np.int8(Reason.ON_DEMAND_STANDS), np.int8(Reason.WITHIN_BUDGET)
        )
        reason = np.where(
            stays | (takes & ~on_demand),
            _spot_reasons(stays, is_there),
            np.where(fits, buys_reason, np.int8(Reason.OVER_BUDGET)),
        )
        holds, reason = exact_net(situation, holds, reason, is_start=~stays)
        return Choice(holds, np.where(stays, situation.place, place), reason)


class Greedy:
    """Spot nodes whenever they are available, and otherwise none until the safety net."""

    name = "greedy"

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        place, is_there = cheapest_place(situation)
        stays = holds_spot(situation)
        holds = np.where(stays | is_there, _SPOT, _WAIT)
        reason = _spot_reasons(stays, is_there)
        holds, reason = _published_net(situation, holds, reason)
        return Choice(holds, np.where(stays, situation.place, place), reason)


class UniformProgress:
    """On-demand nodes while progress is behind the elapsed share of the time until the deadline."""

    name = "uniform-progress"

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        place, is_there = cheapest_place(situation)
        stays, on_demand = holds_spot(situation), situation.held == Held.ON_DEMAND
        # A deadline may be moved to the start, or before it.
        rate = situation.work_s / np.maximum(situation.deadline_s, situation.tick_s)
        progress_s, elapsed_s = situation.progress_s, situation.elapsed_s
        is_behind = progress_s < elapsed_s * rate
        is_ahead = progress_s > (elapsed_s + 2 * situation.changeover_s) * rate
        # Without sight, the return to spot nodes is a try.
        returns = on_demand & is_ahead & (is_there | (~situation.is_seen & is_idle_safe(situation)))
        takes = np.where(on_demand, returns, is_there)
        buys = np.where(on_demand, True, is_behind)
        holds = np.where(stays | takes, _SPOT, np.where(buys, _ON_DEMAND, _WAIT))
        reason = np.where(
            stays,
            np.int8(Reason.SPOT_STANDS),
            np.where(
                takes,
                np.where(
                    on_demand,
                    np.int8(Reason.AHEAD_OF_SCHEDULE),
                    np.int8(Reason.SPOT_IS_AVAILABLE),
                ),
                np.where(
                    on_demand,
                    np.int8(Reason.ON_DEMAND_STANDS),
                    np.where(
                        is_behind, np.int8(Reason.BEHIND_SCHEDULE), np.int8(Reason.WAIT_FOR_SPOT)
                    ),
                ),
            ),
        )
        holds, reason = _published_net(situation, holds, reason)
        return Choice(holds, np.where(stays, situation.place, place), reason)


class Threshold:
    """Spot nodes whenever they are available, on-demand nodes when the slack becomes short.

    It is short when it falls below a share of the work that is left.
    """

    name = "threshold"

    def __init__(self, theta: float = DEFAULT_THETA, try_every_s: float = TRY_EVERY_S) -> None:
        """`try_every_s`: how often on-demand nodes are given back for spot nodes that are not seen."""
        self._theta, self._try_every_s = theta, try_every_s

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        place, is_there = cheapest_place(situation)
        stays, on_demand = holds_spot(situation), situation.held == Held.ON_DEMAND
        remaining_s = situation.remaining_s
        until_deadline_s = situation.deadline_s - situation.elapsed_s
        slack_s = until_deadline_s - remaining_s - situation.on_demand_start_s
        is_short = slack_s < self._theta * remaining_s
        if not situation.sees_all:
            # A try costs a tick and two starts.
            least_s = 2 * situation.changeover_s + TRY_SLACK * remaining_s
            tries = (situation.unseen_s >= self._try_every_s) & (slack_s > least_s)
            is_there = is_there | (tries & is_idle_safe(situation))
        holds = np.where(stays | is_there, _SPOT, np.where(on_demand | is_short, _ON_DEMAND, _WAIT))
        reason = np.where(
            stays,
            np.int8(Reason.SPOT_STANDS),
            np.where(
                is_there,
                np.int8(Reason.SPOT_IS_AVAILABLE),
                np.where(
                    on_demand,
                    np.int8(Reason.ON_DEMAND_STANDS),
                    np.where(
                        is_short, np.int8(Reason.BEHIND_SCHEDULE), np.int8(Reason.WAIT_FOR_SPOT)
                    ),
                ),
            ),
        )
        holds, reason = exact_net(situation, holds, reason, is_start=~stays)
        return Choice(holds, np.where(stays, situation.place, place), reason)


def exact_net(
    situation: Situation, holds: Codes, reason: Codes, *, is_start: Flags
) -> tuple[Codes, Codes]:
    """Replace choices after whose worst outcome on-demand nodes would miss the deadline.

    `is_start`: where a choice of spot nodes starts new ones.
    """
    safe = np.where(
        holds == _SPOT,
        is_spot_safe(situation, is_start=is_start),
        (holds == _ON_DEMAND) | is_idle_safe(situation),
    )
    # A try may find no spot node, and then the tick passes without any.
    safe &= situation.is_seen | (holds != _SPOT) | is_idle_safe(situation)
    return (
        np.where(safe, holds, _ON_DEMAND),
        np.where(safe, reason, np.int8(Reason.SAFETY_NET)),
    )


def _spot_reasons(stays: Flags, is_there: Flags) -> Codes:
    """Reasons of a choice of spot nodes, or of none where they are not available."""
    return np.where(
        stays,
        np.int8(Reason.SPOT_STANDS),
        np.where(is_there, np.int8(Reason.SPOT_IS_AVAILABLE), np.int8(Reason.WAIT_FOR_SPOT)),
    )


def _published_net(situation: Situation, holds: Codes, reason: Codes) -> tuple[Codes, Codes]:
    """The safety net of the paper.

    On-demand nodes start while there is time for a second start.
    """
    stays = holds_spot(situation)
    remaining_s, start_s = situation.remaining_s, situation.on_demand_start_s
    ticks_left = situation.ticks_left
    is_near = ticks_left <= situation.ticks(remaining_s + start_s + situation.changeover_s)
    is_due = ticks_left <= situation.ticks(remaining_s + start_s)
    keeps = stays & (situation.warm_up_s <= 0)
    forced = np.where(is_due, ~keeps, is_near & ~stays)
    return (
        np.where(forced, _ON_DEMAND, holds),
        np.where(forced & (holds != _ON_DEMAND), np.int8(Reason.SAFETY_NET), reason),
    )
