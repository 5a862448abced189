"""Each rank has copies of what the others have alone, as of the last step boundary."""

from __future__ import annotations

import pytest
import torch
from holdfast_worker.distributed.collectives import (
    BoundaryRestarted,
    Collective,
    RecoverableWork,
)
from holdfast_worker.recovery.replication import Replication
from torch import Tensor
from torch.futures import Future

SIZE = 2
THERE = b"the other's"


class EchoGroup:
    """A group of two ranks, in which the other one sends a constant."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.is_restarted = False
        self.exchanges = 0

    def size(self) -> int:
        return SIZE

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> RecoverableWork:
        self.exchanges += 1
        future: Future[list[Tensor]] = Future()
        future.set_result([])
        collective = Collective(0, lambda _: None, [], [], future)
        if not self.is_broken:
            outputs[0][0].copy_(inputs[0])
            raw = len(THERE).to_bytes(8, "little") + THERE
            outputs[0][1][: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            collective.is_completed = True
        collective.is_void = self.is_restarted
        return RecoverableWork(collective)


class Rank:
    """The replication of rank 0, whose state tests set."""

    def __init__(self) -> None:
        self.state = b"mine 0"
        self.group = EchoGroup()
        self.replication = Replication(self.group, lambda: self.state)  # type: ignore[arg-type]

    def pass_boundary(self, step: int) -> None:
        size, has_changed, is_late = self.replication.check()
        self.replication.settle(step, size, has_changed=has_changed, is_late=is_late)

    def pass_boundary_again(self, step: int) -> None:
        """Pass a boundary in which the states are exchanged again, as for ranks that move."""
        size, _, is_late = self.replication.check()
        self.replication.settle(step, size, has_changed=True, is_late=is_late)


@pytest.fixture
def rank() -> Rank:
    rank = Rank()
    rank.pass_boundary(0)
    return rank


def test_first_boundary_exchanges_the_states(rank: Rank) -> None:
    assert rank.replication.copies(0, is_settled=True) == {0: b"mine 0", 1: THERE}


def test_exchange_within_a_step_holds_for_the_next_boundary(rank: Rank) -> None:
    rank.state = b"mine 1"
    rank.replication.exchange(1)

    assert rank.replication.copies(1, is_settled=False)[0] == b"mine 1"
    assert rank.replication.copies(0, is_settled=True)[0] == b"mine 0"


def test_unchanged_state_is_not_sent_again(rank: Rank) -> None:
    rank.replication.exchange(1)
    before = rank.group.exchanges

    rank.pass_boundary(1)

    assert rank.group.exchanges == before
    assert rank.replication.copies(1, is_settled=True)[1] == THERE


def test_changed_state_is_sent_again_at_the_boundary(rank: Rank) -> None:
    rank.replication.exchange(1)
    rank.state = b"drawn after the exchange"

    rank.pass_boundary(1)

    assert rank.replication.copies(1, is_settled=True)[0] == b"drawn after the exchange"


def test_states_that_change_late_count_only_at_boundaries(rank: Rank) -> None:
    rank.replication.exchange(1)
    rank.state = b"drawn after the exchange"
    rank.pass_boundary(1)

    rank.replication.exchange(2)

    assert rank.replication.copies(2, is_settled=False) == {}
    assert rank.replication.copies(1, is_settled=True) != {}


def test_repeated_boundary_does_not_look_like_a_late_change(rank: Rank) -> None:
    rank.replication.exchange(1)
    rank.group.is_restarted = True
    with pytest.raises(BoundaryRestarted):
        rank.pass_boundary_again(1)
    rank.group.is_restarted = False
    rank.pass_boundary_again(1)

    rank.state = b"mine 2"
    rank.replication.exchange(2)

    assert rank.replication.copies(2, is_settled=False)[0] == b"mine 2"


def test_exchange_holds_until_the_repeated_one_is_complete(rank: Rank) -> None:
    rank.replication.exchange(1)
    rank.group.is_broken = rank.group.is_restarted = True
    with pytest.raises(BoundaryRestarted):
        rank.pass_boundary_again(1)

    assert rank.replication.copies(1, is_settled=False)[1] == THERE


def test_larger_state_gets_a_larger_slot(rank: Rank) -> None:
    rank.state = b"x" * 100_000
    rank.replication.exchange(1)
    unfit = rank.replication.copies(1, is_settled=False)

    rank.pass_boundary(1)

    assert 0 not in unfit
    assert rank.replication.copies(1, is_settled=True)[0] == rank.state


def test_failed_exchange_leaves_no_copies(rank: Rank) -> None:
    rank.group.is_broken = True

    rank.replication.exchange(1)

    assert rank.replication.copies(1, is_settled=False) == {}


def test_new_rank_takes_part_with_the_settings_of_others(rank: Rank) -> None:
    new = Rank()
    new.replication.exchange(1)
    without = new.group.exchanges

    new.replication.adopt(*rank.replication.settings)
    new.replication.exchange(1)

    assert (without, new.group.exchanges) == (0, 1)


def test_rank_without_a_position_has_no_copy_yet() -> None:
    rank = Rank()
    rank.state = b""

    rank.pass_boundary(0)

    assert rank.replication.copies(0, is_settled=True) == {1: THERE}
