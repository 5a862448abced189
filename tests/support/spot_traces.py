"""Recorded and made-up spot markets for tests of the planner."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from holdfast.domain.planning.beliefs import padded, table_of
from holdfast.domain.planning.replay import RecordedMarkets, Terms, Windows
from holdfast.domain.planning.situation import Choice, Held, Situation
from holdfast.domain.planning.traces import Numbers, Trace, parse_json

DATA: Final = Path(__file__).parents[1] / "data" / "spot_traces"
"""Recordings; its README states where they come from."""
AWS_2022, AWS_2023 = DATA / "aws_2022_10_26", DATA / "aws_2023_02_15"
GOLDEN_WINDOWS: Final = DATA / "golden_windows.csv"
HOUR_S: Final = 3600.0
SPOT_USD, ON_DEMAND_USD = 0.9731, 3.06
"""Prices of a V100 node per hour at the time of the recordings."""


def recorded(folder: Path) -> list[Trace]:
    """The traces of a folder, by name."""
    return [parse_json(path.stem, path.read_text()) for path in sorted(folder.glob("*.json"))]


def trace_of(text: str, gap_s: float = 600.0, name: str = "zone") -> Trace:
    """A trace of one character for each tick: 1 available, 0 not, ? unknown."""
    signs = np.array([*text])
    return Trace(name, gap_s, signs == "1", signs != "?")


def markets_of(
    *traces: Trace, together: bool = False, spot_usd: float = 1.0, regions: Sequence[int] = ()
) -> RecordedMarkets:
    """The markets of traces: one for each, or one for all."""
    places = [[*traces]] if together else [[trace] for trace in traces]
    available = padded(places)
    region = np.array([[*regions]] if regions else np.zeros(available.shape[:2], np.intp))
    return RecordedMarkets(
        gap_s=traces[0].gap_s,
        available=available,
        price=np.full(available.shape, spot_usd),
        region=region,
        beliefs=table_of(places),
    )


def windows_of(
    *starts: int,
    work_s: float,
    deadline_s: float | Numbers,
    changeover_s: float | Numbers,
    market: int | Sequence[int] = 0,
) -> Windows:
    """Windows of jobs with the same work."""
    rows = len(starts)
    return Windows(
        market=np.broadcast_to(np.array(market, np.intp), rows).copy(),
        start=np.array(starts, np.intp),
        work_s=work_s,
        deadline_s=np.broadcast_to(np.array(deadline_s, np.float64), rows).copy(),
        changeover_s=np.broadcast_to(np.array(changeover_s, np.float64), rows).copy(),
    )


def terms_of(**values: float) -> Terms:
    """Prices and conditions; on-demand nodes cost three times as much as spot nodes."""
    return Terms(**{"on_demand_usd_per_hour": 3.0, **values})  # type: ignore[arg-type]


class Scripted:
    """A policy that holds what a text names for each tick: `.` nothing, `s` spot, `d` on-demand.

    The last character holds for all later ticks. Spot nodes that are not available are replaced by nothing.
    """

    name = "scripted"

    def __init__(self, text: str, place: int = 0) -> None:
        self._holds = [{".": Held.NOTHING, "s": Held.SPOT, "d": Held.ON_DEMAND}[c] for c in text]
        self._place = place
        self.seen: list[Situation] = []

    def choose(self, situation: Situation) -> Choice:
        """The choice for each row."""
        # The replay writes progress into the same arrays.
        self.seen.append(copy.deepcopy(situation))
        tick = round(float(situation.elapsed_s[0] / situation.tick_s))
        held = self._holds[min(tick, len(self._holds) - 1)]
        rows = len(situation.row)
        holds = np.full(rows, held, np.int8)
        if held == Held.SPOT:
            holds[~situation.available[:, self._place]] = Held.NOTHING
        return Choice(holds, np.full(rows, self._place), np.zeros(rows, np.int8))
