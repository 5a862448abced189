"""What a save costs the training beside it: steps of a small model on one thread, undisturbed and during a save.

Holdfast spreads an upload over a quarter of the time between two saves; no peer does anything of the kind, so that
what a save takes from the training is told too, in seconds.
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

CALM_S = 3.0
"""Of undisturbed steps before each save."""


class Interference:
    """A training of which each step is many small operations."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        layers = [m for _ in range(12) for m in (nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU())]
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), foreach=False)
        self._batch = torch.randn(64, 128)

    def step_s(self) -> float:
        """Seconds that one step takes."""
        began_s = time.monotonic()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.monotonic() - began_s


def study(asked: dict[str, Any], port: int) -> dict[str, Any]:
    """Steps without and with saves beside them."""
    state, lesson = State(SHAPES[asked["size"]]), Interference()
    contestant = open_candidate(asked["contestant"], state, port, asked["pace_s"])
    calm: list[float] = []
    during: list[float] = []
    lost_s: list[float] = []
    for number in range(asked["saves"] + 1):
        quiet = _steps(lesson, until=_after(CALM_S))
        began_s = time.monotonic()
        contestant.save(number)
        stall_s = time.monotonic() - began_s
        busy = _steps(lesson, until=lambda: contestant.is_durable)
        contestant.settle()
        tidy = getattr(contestant, "tidy", None)
        if tidy:
            tidy()
        if number:
            calm += quiet
            during += busy
            lost_s.append(stall_s + sum(busy) - len(busy) * statistics.median(quiet))
    middle_s = statistics.median(calm)
    slower = (
        [statistics.median(during) / middle_s, statistics.fmean(during) / statistics.fmean(calm)]
        if during
        else []
    )
    return {"step_s": middle_s, "slower": slower, "lost_s": lost_s, "steps": len(during)}


def _steps(lesson: Interference, until: Any) -> list[float]:
    taken = []
    while not until():
        taken.append(lesson.step_s())
    return taken


def _after(seconds: float) -> Any:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() > end_s


def main() -> None:
    """Study, and say what it took."""
    warnings.simplefilter("ignore")
    asked = json.loads(sys.argv[1])
    assert asked["contestant"] in BY_NAME
    print(json.dumps(study(asked, asked["port"])), flush=True)


if __name__ == "__main__":
    main()
