"""When a job is expected to end, with the interruptions that are still to come. Pure.

What remains takes the training time of its steps. In that time the job is interrupted at a rate that is not known: a gamma distribution, whose
prior weighs as much as one loss, updated with the losses of the job's own training time. An interruption costs a downtime, of which
the logarithm is normal with unknown mean and deviation (updated with those of the job), and the work since the last checkpoint. Of `RUNS` samples
of all this, the quantiles are taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.throughput.run_history import RunHistory

RUNS: Final = 256
"""Samples. A lower value makes the ends of the band jump; a higher value delays lists of jobs."""
PRIOR_LOSSES: Final = 1.0
"""Losses that weigh as much as those of the job.
A lower value believes a coincidence; a higher value learns too late how often a job is interrupted."""
USUAL_SPOT_LOSS_S: Final = 6 * 3600.0
"""Mean time of training between losses on spot nodes of a usual place."""
USUAL_LOSS_S: Final = 60 * 86400.0
"""The same on other nodes: failures of machines and of programs."""
STEADY_DEVIATION: Final = 0.02
"""Relative deviation of the time of later steps from that of earlier ones.
A lower value makes the band too narrow for jobs without losses; a higher value too wide."""
WARM_UP_S: Final = 15.0
"""Measured time that may be start-up instead of training.
A lower value believes the first seconds; a higher value has wide bands for minutes."""
MAX_DEVIATION: Final = 0.5
PRIOR_DOWNTIMES: Final = 1.0
"""Downtimes that weigh as much as those of the job, for their mean. Likewise `PRIOR_FREEDOM` for their deviation."""
PRIOR_FREEDOM: Final = 4.0
DOWNTIME_DEVIATION: Final = 0.6
"""Deviation of the logarithm of downtimes without measurements: about half to double the usual one."""
MAX_DOWNTIME_S: Final = 30 * 86400.0
MAX_INTERRUPTIONS: Final = 2000
"""Interruptions of a sample. A lower value ends hopeless jobs too early; a higher value takes longer."""
_TRIES: Final = 8
_SEED: Final = 0
_QUANTILES: Final = (0.1, 0.5, 0.9)

Samples = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RemainingWork:
    """What a job has left to do."""

    steps: int
    step_s: float
    """Training time of a step, with stalls and saves, as in `Pace`."""
    measured_s: float
    """Training time on which that rests."""
    since: datetime
    """When this much was left: the time of the newest step, or now if the job does not train."""
    interval_s: float
    """Training time between two checkpoints; that of the whole job without any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InterruptionPrior:
    """What is known of interruptions without the job's own."""

    loss_s: float
    """Mean time of training between two."""
    downtime_s: float
    """Median of the time from a loss to the next step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndEstimate:
    """When a job ends, in a tenth, half and nine tenths of the samples at the latest."""

    p10: datetime
    p50: datetime
    p90: datetime
    interruptions: float
    """Mean number of further interruptions."""


def spot_loss_s(multiplier: float) -> float:
    """Mean time between losses at a place that loses nodes so many times as often as usual."""
    return USUAL_SPOT_LOSS_S / multiplier


def estimate_end(
    work: RemainingWork, history: RunHistory, prior: InterruptionPrior, now: datetime
) -> EndEstimate:
    """Estimate the end of a job that trains or waits for nodes."""
    random = np.random.default_rng(_SEED)
    training_s = _training_times(work, random)
    lost_s = _mean_lost_s(work, history)
    trained_s = history.trained_s
    if history.training_since:
        trained_s += max(0.0, (now - history.training_since).total_seconds())
    losses_per_s = random.standard_gamma(PRIOR_LOSSES + history.losses, RUNS) / (
        PRIOR_LOSSES * prior.loss_s + trained_s
    )
    # Work that is done again is interrupted, too.
    exposed_s = training_s * (1 + np.minimum(1.0, losses_per_s * lost_s))
    counts = random.poisson(np.minimum(losses_per_s * exposed_s, MAX_INTERRUPTIONS))
    downtimes = _Downtimes.of([each.downtime_s for each in history.interruptions], prior, random)
    run = np.repeat(np.arange(RUNS), counts)
    cost_s = downtimes.draw(run, random) + 2 * lost_s * random.random(len(run))
    taken_s = training_s + np.bincount(run, cost_s, RUNS)
    if history.training_since is None and work.steps:
        since = history.waiting_since or now
        taken_s += downtimes.rest(max(0.0, (now - since).total_seconds()), random)
    taken_s.sort()
    p10, p50, p90 = (
        max(now, work.since + timedelta(seconds=float(taken_s[round(share * (RUNS - 1))])))
        for share in _QUANTILES
    )
    return EndEstimate(p10=p10, p50=p50, p90=p90, interruptions=float(counts.mean()))


def _training_times(work: RemainingWork, random: np.random.Generator) -> Samples:
    deviation = min(MAX_DEVIATION, math.hypot(STEADY_DEVIATION, WARM_UP_S / work.measured_s))
    times: Samples = work.steps * work.step_s * np.exp(deviation * random.standard_normal(RUNS))
    return times


def _mean_lost_s(work: RemainingWork, history: RunHistory) -> float:
    """Mean work that an interruption loses: half an interval, updated with what it has lost."""
    lost = [each.lost_steps * work.step_s for each in history.interruptions]
    return (work.interval_s / 2 + math.fsum(lost)) / (1 + len(lost))


@dataclass(frozen=True, slots=True)
class _Downtimes:
    """Distribution of the logarithm of downtimes in each sample."""

    mean: Samples
    deviation: Samples

    @classmethod
    def of(
        cls, measured_s: Sequence[float], prior: InterruptionPrior, random: np.random.Generator
    ) -> _Downtimes:
        """Normal-inverse-gamma posterior."""
        usual = math.log(max(1.0, prior.downtime_s))
        logs = np.log(np.maximum(1.0, np.array(measured_s, np.float64)))
        count = len(logs)
        mean = float(logs.mean()) if count else usual
        weight = PRIOR_DOWNTIMES + count
        squares = (
            PRIOR_FREEDOM * DOWNTIME_DEVIATION**2
            + float(((logs - mean) ** 2).sum())
            + PRIOR_DOWNTIMES * count / weight * (mean - usual) ** 2
        )
        deviation = np.sqrt(squares / random.chisquare(PRIOR_FREEDOM + count, RUNS))
        middle = (PRIOR_DOWNTIMES * usual + count * mean) / weight
        return cls(middle + deviation / math.sqrt(weight) * random.standard_normal(RUNS), deviation)

    def draw(self, run: NDArray[np.intp], random: np.random.Generator) -> Samples:
        """A downtime for each entry, which is the number of its sample."""
        logs = self.mean[run] + self.deviation[run] * random.standard_normal(run.shape)
        times: Samples = np.exp(np.minimum(logs, math.log(MAX_DOWNTIME_S)))
        return times

    def rest(self, waited_s: float, random: np.random.Generator) -> Samples:
        """What is left of a downtime after some time, in each sample."""
        drawn = self.draw(np.repeat(np.arange(RUNS)[:, None], _TRIES, axis=1), random)
        longer = drawn > waited_s
        first = drawn[np.arange(RUNS), longer.argmax(axis=1)]
        # A wait that is longer than all expected ones may take as long again.
        endless = waited_s * random.standard_exponential(RUNS)
        left: Samples = np.where(longer.any(axis=1), first - waited_s, endless)
        return left
