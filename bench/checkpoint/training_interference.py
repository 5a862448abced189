"""Cost of a concurrent save: steps of a small single-threaded model with and without it.

Holdfast spreads an upload over a quarter of the time between two saves, and no peer does; the total training
time that a save takes is therefore also measured, in seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from typing import Any

import torch
from torch import nn

from checkpoint.candidates import BY_NAME
from checkpoint.state import SHAPES, State
from checkpoint.trial import open_candidate

UNDISTURBED_S = 3.0
"""Duration of undisturbed steps before each save."""


class Interference:
    """A training whose steps consist of many small operations."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        layers = [m for _ in range(12) for m in (nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU())]
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), foreach=False)
        self._batch = torch.randn(64, 128)

    def step_s(self) -> float:
        """Run one step and return its duration."""
        began_s = time.monotonic()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.monotonic() - began_s


def measure(arguments: dict[str, Any], port: int) -> dict[str, Any]:
    """Measure steps without and with concurrent saves."""
    state, training = State(SHAPES[arguments["size"]]), Interference()
    candidate = open_candidate(arguments["candidate"], state, port, arguments["pace_s"])
    undisturbed: list[float] = []
    disturbed: list[float] = []
    lost_s: list[float] = []
    for number in range(arguments["saves"] + 1):
        before = _steps(training, until=_after(UNDISTURBED_S))
        began_s = time.monotonic()
        candidate.save(number)
        stall_s = time.monotonic() - began_s
        concurrent = _steps(training, until=lambda: candidate.is_durable)
        candidate.settle()
        delete_previous = getattr(candidate, "delete_previous", None)
        if delete_previous:
            delete_previous()
        if number:
            undisturbed += before
            disturbed += concurrent
            lost_s.append(stall_s + sum(concurrent) - len(concurrent) * statistics.median(before))
    middle_s = statistics.median(undisturbed)
    slower = (
        [
            statistics.median(disturbed) / middle_s,
            statistics.fmean(disturbed) / statistics.fmean(undisturbed),
        ]
        if disturbed
        else []
    )
    return {"step_s": middle_s, "slower": slower, "lost_s": lost_s, "steps": len(disturbed)}


def _steps(training: Interference, until: Any) -> list[float]:
    durations = []
    while not until():
        durations.append(training.step_s())
    return durations


def _after(seconds: float) -> Any:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() > end_s


def main() -> None:
    """Measure and print the results."""
    warnings.simplefilter("ignore")
    arguments = json.loads(sys.argv[1])
    assert arguments["candidate"] in BY_NAME
    print(json.dumps(measure(arguments, arguments["port"])), flush=True)


if __name__ == "__main__":
    main()
