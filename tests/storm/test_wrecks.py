"""Wrecks: ranks that are killed anywhere, and resumed, end where they would have ended, bit for bit.

One seed is one voyage: how many ranks, over which store, killed or warned at which line of what, and how often. The places
are the same every time; what happens meanwhile on other ranks is not. STORM_SEEDS says how many there are.
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3stand
from holdfast_worker.protocol.environment import Exit
from often import STORM_SEEDS, often
from s3stand import Stand
from storm import hatchery
from storm.hatchery import Hatchery
from storm.reefs import DOINGS, LEAVING, Deed, Reef
from storm.sailing import Job
from storm.truths import Calm, Standing, check_end, check_leg
from storm.voyages import Leg, Voyage, draw

SEEDS = max(1, STORM_SEEDS // 5)
EVERY_LINE = "STORM_EVERY_LINE" in os.environ
REQUESTS = ("send: put", "upload: put", "commit: put if absent", "point: swap", "tidy: delete")
"""Those after which the store is another one."""


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


def sail(voyage: Voyage, path: Path, brood: Hatchery, stand: Stand, calm: Calm) -> list[str]:
    """What was struck on the way of a job, which was brought to its end."""
    print(voyage)
    stand.renew()
    path.mkdir()
    job = Job(path, kind=voyage.kind, stand=stand if voyage.is_far else None)
    standing = Standing(job.archive(), [], {})
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
    return [words for landfall in job.landfalls for words in landfall.struck]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_wreck(tmp_path: Path, brood: Hatchery, stand: Stand, calm: Calm, seed: int) -> None:
    voyage = draw(seed)

    struck = sail(voyage, tmp_path / "job", brood, stand, calm)
    struck = struck or sail(voyage.sooner(), tmp_path / "again", brood, stand, calm)

    assert struck, "nothing is there any more of what was to be disturbed"


@pytest.mark.parametrize("is_far", [False, True], ids=["directory", "S3"])
@pytest.mark.parametrize("doing", REQUESTS)
def test_killed_at_any_line_of_a_request_to_the_store(
    tmp_path: Path, brood: Hatchery, stand: Stand, calm: Calm, doing: str, is_far: bool
) -> None:
    struck: list[str] = []

    for line in range(1, DOINGS[doing].lines + 1, 1 if EVERY_LINE else often(15, 6)):
        reef = Reef(doing, 2, line, Deed.KILL)
        voyage = Voyage("ddp", is_far, (Leg(1, ((0, reef),)),), Leg(1))
        struck += sail(voyage, tmp_path / f"{line}", brood, stand, calm)
    # On a busy machine a run may make too few saves to remove an old one.
    struck = struck or sail(voyage.sooner(), tmp_path / "again", brood, stand, calm)

    assert struck


@pytest.mark.parametrize(
    "function", sorted({f for d in (*DOINGS.values(), LEAVING) for f in d.functions})
)
def test_what_is_to_be_disturbed_is_there(function: str) -> None:
    module, _, name = function.partition(":")

    found = operator.attrgetter(name)(importlib.import_module(f"holdfast_worker.{module}"))

    assert found.__code__.co_qualname == name


def test_four_ranks_go_on_to_the_bit(tmp_path: Path, brood: Hatchery, calm: Calm) -> None:
    """DDP fills its buckets in another order in its first step. The first step after a resume summed the gradients of four
    ranks in another order than the same step of a run that was left alone, and every resumed job ended with other bits."""
    notice = Reef("train", 7, 1, Deed.NOTICE_ALL, left_s=120.0)
    legs = [Leg(4, ((1, notice),)), Leg(4)]
    job = Job(tmp_path)

    standing = Standing(job.archive(), [], {})
    for leg in legs:
        standing = check_leg(job, leg, standing, job.sail(brood, leg))

    assert [landfall.codes for landfall in job.landfalls] == [[Exit.PREEMPTED] * 4, [Exit.DONE] * 4]
    assert job.begun(0)[0] == "7"
    check_end(job, calm, standing, legs)
