"""Sweeps of the demonstration: one that has ended, and one that runs.

The stop rule of the former has cancelled some of its jobs. Pure, determined by a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import yaml

from holdfast.demo.history.jobs import HOURS, DemoJob, MakeJob, random_job

_BEST_RATE: Final = 3e-5
"""Learning rate of the lowest loss."""
_STEP_S: Final = 8.0
_POINTS: Final = 120
"""Points of the curve of a job. A higher value slows down the generation; a lower value makes angular curves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSweep:
    """One sweep of a user."""

    base: DemoJob
    """What its jobs have in common."""
    params: Mapping[str, tuple[str, ...]]
    parallel: int
    max_cost_usd: int

    @property
    def request(self) -> dict[str, Any]:
        """Return the request that submits it."""
        task = yaml.safe_dump(self.base.task, sort_keys=False)
        return {
            "task": {"task": task, "project": self.base.project},
            "params": {name: list(values) for name, values in self.params.items()},
            "parallel": self.parallel,
            "max_cost_usd": self.max_cost_usd,
            "stop": {"metric": "loss", "grace_steps": self.base.program.total_steps // 4},
        }

    def trial(self, number: int, params: Mapping[str, str]) -> DemoJob:
        """Return one of its jobs.

        Its loss is the higher, the further its learning rate is from the best one.
        """
        distance = abs(math.log10(float(params["LR"]) / _BEST_RATE))
        program = replace(
            self.base.program,
            loss_floor=round(1.0 + 4.0 * distance**2, 3),
            loss_scale_steps=self.base.program.total_steps / (6 - 2 * distance),
            loss_seed=number,
        )
        return replace(self.base, name=f"{self.base.name}-{number}", program=program)


def demo_sweeps(seed: int) -> list[DemoSweep]:
    """Return all sweeps in order of submission."""
    draw = random.Random(f"{seed}/sweeps")
    ended = _sweep(
        partial(random_job, draw, seed, 1),
        *(2, draw.uniform(430, 470)),
        hours=2.5,
        params={"LR": ("3e-5", "1e-5", "1e-4", "3e-4"), "SEED": ("1", "2", "3")},
        parallel=4,
        max_cost_usd=120,
    )
    running = _sweep(
        partial(random_job, draw, seed, 2),
        *(5, HOURS - draw.uniform(9, 11)),
        hours=6.0,
        params={"LR": ("3e-5", "1e-4", "3e-4"), "WEIGHT_DECAY": ("0.01", "0.1")},
        parallel=2,
        max_cost_usd=700,
    )
    return [ended, running]


def _sweep(
    make: MakeJob,
    model_number: int,
    start_h: float,
    *,
    hours: float,
    params: Mapping[str, tuple[str, ...]],
    parallel: int,
    max_cost_usd: int,
) -> DemoSweep:
    part = make(model_number, start_h)
    steps = int(hours * 3600 / _STEP_S)
    program = replace(
        part.program,
        total_steps=steps,
        step_s=_STEP_S,
        checkpoint_every_steps=steps // 6,
        progress_every_steps=steps // _POINTS,
        tokens_per_step=round(part.program.tokens_per_step / part.program.step_s * _STEP_S),
    )
    name = f"{part.name.rpartition('-')[0]}-rates"
    return DemoSweep(
        base=replace(part, name=name, nodes=1, program=program, limits={}),
        params=params,
        parallel=parallel,
        max_cost_usd=max_cost_usd,
    )
