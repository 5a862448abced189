"""What the loss of a node cost a job on a real launcher, from its events, in a file for `bench/recovery`.

A test that loses nodes of such a job appends to the file that HOLDFAST_TEST_BREAKDOWN names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

FILE: Final = os.environ.get("HOLDFAST_TEST_BREAKDOWN", "")
"""The file; empty: nothing is written."""
PHASES: Final[Mapping[str, str]] = {
    "NodeLost": "detect",
    "NodeReplaced": "nodes",
    "RanksReplaced": "processes",
}
"""Events at which phases end, in order. The last one is that of the ranks that continue: connecting and state are in its phase."""


@dataclass(frozen=True, slots=True)
class LossBreakdown:
    """Times from the loss of a node until training continued on all nodes."""

    nodes: int
    """Number of nodes of the job."""
    continued_s: float
    repeated_steps: int
    phases: Mapping[str, float]

    @classmethod
    def of_events(
        cls,
        lost_at: datetime,
        events: Iterable[Mapping[str, Any]],
        *,
        nodes: int,
        repeated_steps: int,
    ) -> Self:
        """The breakdown of a loss at `lost_at`, from the events of the job.

        An event that a launcher reports with an earlier time than the one before ends no phase.

        Raises:
            ValueError: training did not continue.
        """
        first: dict[str, float] = {}
        for event in events:
            after_s = (datetime.fromisoformat(event["at"]) - lost_at).total_seconds()
            if event["kind"] in PHASES and after_s > 0:
                first.setdefault(event["kind"], after_s)
        if "RanksReplaced" not in first:
            raise ValueError(f"training did not continue after {lost_at}: no RanksReplaced")
        phases, from_s = {}, 0.0
        for kind, phase in PHASES.items():
            if from_s < first.get(kind, 0.0) <= first["RanksReplaced"]:
                phases[phase], from_s = first[kind] - from_s, first[kind]
        return cls(nodes, first["RanksReplaced"], repeated_steps, phases)


def append_breakdown(found: LossBreakdown, file: str = FILE) -> None:
    """Add it to those in the file; no effect without one."""
    if not file:
        return
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*before, asdict(found)], indent=1))


def read_breakdowns(file: Path) -> list[LossBreakdown]:
    """What `append_breakdown` has written.

    Raises:
        ValueError: the file has none; the message says how to write it.
    """
    try:
        found = [LossBreakdown(**each) for each in json.loads(file.read_text())]
    except (OSError, TypeError, ValueError) as error:
        problem = f"{file} has no breakdowns of losses ({error})"
    else:
        problem = "" if found else f"{file} has no losses"
    if problem:
        raise ValueError(
            f"{problem}: HOLDFAST_TEST_BREAKDOWN={file} make e2e lets the test of node groups write it"
        )
    return found
