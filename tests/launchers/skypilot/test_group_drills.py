"""Node groups over a fake SkyPilot that end on request: each is recovered, and only they count as drills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from fake_skypilot import JobSimulation
from holdfast.domain.events import CapacityLost, NodeLost
from sqlalchemy import Engine
from support.skypilot.node_groups import HEAD, MORE, WORKERS, GroupHarness, drilled_story

NewGroups: TypeAlias = Callable[..., GroupHarness]


@pytest.fixture
def new_groups(tmp_path: Path, sqlite: Engine) -> NewGroups:
    """Return a factory of services with a job of three groups."""
    return lambda *args, **words: GroupHarness(sqlite, tmp_path / "home", *args, **words)


@pytest.mark.parametrize("keeps_nodes", [True, False])
def test_each_group_is_preempted_on_request(new_groups: NewGroups, keeps_nodes: bool) -> None:
    drilled_story(new_groups(JobSimulation(runs_s=1e9, keeps_nodes=keeps_nodes)))


def test_drill_and_loss_of_other_groups_are_distinguished(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)

    harness.request_drill(MORE)
    harness.preempt(WORKERS)
    harness.run(lambda h: h.job.preemptions == 2, limit_s=600)
    harness.run(GroupHarness.is_whole, limit_s=600)

    marks = {event.node: event.drill for event in harness.log if isinstance(event, NodeLost)}
    assert marks == {1: False, 2: False, 3: True, 4: True, 5: True}
    assert (harness.job.preemptions, harness.job.drills, harness.job.attempt) == (2, 1, 1)


def test_drilled_group_ends_after_the_first_was_lost(new_groups: NewGroups) -> None:
    harness = new_groups()
    harness.run(GroupHarness.is_whole)
    harness.request_drill(MORE, 120)
    harness.pass_time(5)

    harness.preempt(HEAD)
    harness.run(lambda h: h.job.preemptions == 2, limit_s=600)
    harness.run(GroupHarness.is_whole, limit_s=600)

    marks = [event.drill for event in harness.log if isinstance(event, NodeLost | CapacityLost)]
    assert marks == [False, True, True, True]
    assert (harness.job.preemptions, harness.job.drills) == (2, 1)
