"""Wrecks: ranks that are killed anywhere, and resumed, end where they would have ended, bit for bit.

One seed is one voyage: how many ranks, over which store, killed or warned at which line of what, and how often. The places
are the same every time; what happens meanwhile on other ranks is not. STORM_SEEDS says how many there are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3stand
from holdfast_worker.wire import Exit
from s3stand import Stand
from storm import hatchery
from storm.hatchery import Hatchery
from storm.reefs import Deed, Reef
from storm.sailing import Job
from storm.truths import Calm, Standing, check_end, check_leg
from storm.voyages import Leg, draw

SEEDS = max(1, int(os.environ.get("STORM_SEEDS", "300")) // 5)


@pytest.fixture(scope="module")
def brood() -> Iterator[Hatchery]:
    with hatchery.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with s3stand.in_thread() as stand:
        yield stand


@pytest.fixture(scope="module")
def calm(brood: Hatchery, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """Runs that nobody disturbs, made when they are first asked for."""

    @functools.cache
    def logbooks(kind: str, ranks: int) -> list[dict[int, list[str]]]:
        job = Job(tmp_path_factory.mktemp(f"calm-{kind}-{ranks}"), kind=kind)
        landfall = job.sail(brood, Leg(ranks))
        assert landfall.is_finished, job.words()
        return [dict(job.logbook(1, rank)) for rank in range(ranks)]

    return logbooks


def sail(seed: int, path: Path, brood: Hatchery, stand: Stand, calm: Calm) -> Job:
    """The job of a seed, brought to its end."""
    voyage = draw(seed)
    print(f"seed {seed}: {voyage}")
    stand.renew()
    job = Job(path, kind=voyage.kind, stand=stand if voyage.is_far else None)
    standing = Standing(job.archive(), [])
    sailed: list[Leg] = []

    for leg in (*voyage.legs, voyage.last):
        landfall = job.sail(brood, leg)
        sailed.append(leg)
        print(f"{landfall}\n{job.words()}")
        standing = check_leg(job, leg, standing, landfall)
        if landfall.is_finished:
            break

    assert landfall.is_finished, landfall
    check_end(job, calm, standing, sailed)
    return job


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_wreck(tmp_path: Path, brood: Hatchery, stand: Stand, calm: Calm, seed: int) -> None:
    sail(seed, tmp_path, brood, stand, calm)


def test_four_ranks_go_on_to_the_bit(tmp_path: Path, brood: Hatchery, calm: Calm) -> None:
    """DDP fills its buckets in another order in its first step. The first step after a resume summed the gradients of four
    ranks in another order than the same step of a run that was left alone, and every resumed job ended with other bits."""
    notice = Reef("train", 7, 1, Deed.NOTICE_ALL, left_s=120.0)
    legs = [Leg(4, ((1, notice),)), Leg(4)]
    job = Job(tmp_path)

    standing = Standing(job.archive(), [])
    for leg in legs:
        standing = check_leg(job, leg, standing, job.sail(brood, leg))

    assert [landfall.codes for landfall in job.landfalls] == [[Exit.PREEMPTED] * 4, [Exit.DONE] * 4]
    assert job.begun(0)[0] == "7"
    check_end(job, calm, standing, legs)
