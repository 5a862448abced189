"""Collectives survive the loss of ranks: their results are those of an uninterrupted group."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from holdfast_worker.distributed.collectives import BoundaryRestarted, RecoverableWork
from holdfast_worker.distributed.connected_group import ConnectedGroup
from holdfast_worker.distributed.recoverable_group import AbsentGroup, RecoverableGroup
from holdfast_worker.distributed.recovery_plan import NotRecoverable, Place, RecoveryPlan
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, HashStore, PrefixStore
from worker.support.run_driver import free_port, wait_until

SIZE = 3
TIMEOUT = timedelta(seconds=30)
STOPPED_PEER = str(Path(__file__).parents[1] / "scripts/stopped_peer.py")
LARGE = 1024 * 1024
"""More than is copied."""


class Ranks:
    """Ranks of one run, each in a thread of this process."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._store = HashStore()
        self._count = 0
        self.groups: list[Any] = []
        self.all = [RecoverableGroup(rank, SIZE) for rank in range(SIZE)]
        self.failed = [threading.Event() for _ in range(SIZE)]
        for group, event in zip(self.all, self.failed, strict=True):
            group.on_failure = event.set
        self.groups = self.connected_groups()
        for group, connected in zip(self.all, self.groups, strict=True):
            group.connect(connected)

    def connected_groups(self) -> list[Any]:
        self._count += 1
        store = PrefixStore(str(self._count), self._store)
        return self.each(lambda rank: ConnectedGroup(store, rank, SIZE, TIMEOUT))

    def each(self, work: Callable[[int], Any], ranks: Sequence[int] = range(SIZE)) -> list[Any]:
        """Run something on each of the ranks at once."""
        futures: list[Future[Any]] = [self._pool.submit(work, rank) for rank in ranks]
        return [future.result(60) for future in futures]

    def lose(self, rank: int) -> None:
        """End a rank as a kill does; others notice that a collective fails, or the wrapper tells them."""
        self.groups[rank] = None
        self.all[rank].close(30)  # Closes its connections.
        self.all[rank] = RecoverableGroup(rank, SIZE)
        self.each(self._close, [r for r in range(SIZE) if r != rank])

    def _close(self, rank: int) -> None:
        if self.all[rank].unfinished():
            assert self.failed[rank].wait(30)
        else:
            self.all[rank].interrupt()
        self.groups[rank] = None
        self.all[rank].close(30)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with ThreadPoolExecutor(2 * SIZE) as pool:
        ranks = Ranks(pool)
        yield ranks
        # Here, as a thread of gloo that collects garbage could not end itself.
        ranks.groups.clear()
        for group in ranks.all:
            group.close(30)


@pytest.mark.parametrize("sender", [0, 1])
def test_group_that_stops_within_a_message_is_abandoned(sender: int) -> None:
    port = str(free_port())
    words = [sys.executable, STOPPED_PEER]
    first, second = (
        subprocess.Popen(
            [*words, str(rank), port, str(sender)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    try:
        wait_until(lambda: psutil.Process(second.pid).status() == psutil.STATUS_STOPPED)

        out, _ = first.communicate("\n", timeout=60)

        assert (first.returncode, out) == (0, "1\n"), "it neither fails nor waits at its end"
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def summed(group: RecoverableGroup, tensor: Tensor) -> RecoverableWork:
    return group.allreduce([tensor])


def plan(place: Place, entry: int = 0) -> RecoveryPlan:
    return RecoveryPlan(source=0, place=place, step=0, entry=entry)


def test_failed_sum_is_repeated_with_a_new_rank(ranks: Ranks) -> None:
    tensors = [torch.full((5,), float(rank + 1)) for rank in range(SIZE)]
    works = [summed(ranks.all[rank], tensors[rank]) for rank in (0, 1)]
    ranks.lose(2)
    groups = ranks.connected_groups()

    for rank in (0, 1):
        ranks.all[rank].resume(groups[rank], plan(Place.STEP), {})
    ranks.all[2].start(groups[2], plan(Place.STEP), {})
    works.append(summed(ranks.all[2], tensors[2]))

    assert all(work.wait() for work in works)
    assert [tensor.tolist() for tensor in tensors] == [[6.0] * 5] * SIZE


def test_collectives_begun_after_a_loss_wait_in_order(ranks: Ranks) -> None:
    first = [torch.ones(2) for _ in range(SIZE)]
    second = [torch.full((3,), 2.0) for _ in range(SIZE)]
    works = [summed(ranks.all[rank], first[rank]) for rank in (0, 1)]
    ranks.lose(2)
    works += [summed(ranks.all[rank], second[rank]) for rank in (0, 1)]
    groups = ranks.connected_groups()

    for rank in (1, 0):
        ranks.all[rank].resume(groups[rank], plan(Place.STEP), {})
    ranks.all[2].start(groups[2], plan(Place.STEP), {})
    works += [summed(ranks.all[2], first[2]), summed(ranks.all[2], second[2])]

    assert all(work.wait() for work in works)
    assert first[0].tolist() == [3.0, 3.0]
    assert second[2].tolist() == [6.0] * 3


def test_new_rank_gets_results_that_others_have(ranks: Ranks) -> None:
    group = RecoverableGroup(2, SIZE)
    group.start(ranks.groups[2], plan(Place.STEP, 7), {7: [torch.tensor([9.0])]})
    tensor = torch.tensor([1.0])

    assert summed(group, tensor).wait()

    assert tensor.item() == 9.0


def test_survivor_gets_the_result_of_another(ranks: Ranks) -> None:
    tensor = torch.tensor([1.0])
    work = summed(ranks.all[0], tensor)
    ranks.lose(2)
    groups = ranks.connected_groups()

    ranks.all[0].resume(groups[0], plan(Place.STEP), {0: [torch.tensor([6.0])]})

    assert work.wait()
    assert tensor.item() == 6.0


def test_survivor_gets_the_result_of_a_later_collective(ranks: Ranks) -> None:
    group, tensor = ranks.all[0], torch.tensor([1.0])
    group.interrupt()
    group.close(30)
    groups = ranks.connected_groups()

    group.resume(groups[0], plan(Place.STEP), {0: [torch.tensor([6.0])]})

    assert summed(group, tensor).wait()
    assert tensor.item() == 6.0


@pytest.mark.parametrize("moves", ["update", "enter"])
def test_frozen_rank_moves_on_when_it_is_connected(ranks: Ranks, moves: str) -> None:
    group = ranks.all[0]
    group.enter(Place.BOUNDARY, 3)
    group.enter(Place.STEP, 3)
    group.freeze()
    with ThreadPoolExecutor(1) as pool:
        work = group.begin_update if moves == "update" else partial(group.enter, Place.BOUNDARY, 4)
        moved = pool.submit(work)
        time.sleep(0.2)
        before = moved.done(), group.has_updated, group.place, group.step

        group.connect(ranks.groups[0])
        moved.result(30)

    after = group.has_updated, group.place, group.step
    assert before == (False, False, Place.STEP, 3)
    assert after == ((True, Place.STEP, 3) if moves == "update" else (False, Place.BOUNDARY, 4))


def test_rank_that_has_stepped_is_frozen_in_the_next_boundary() -> None:
    group = RecoverableGroup(0, SIZE)
    group.enter(Place.BOUNDARY, 3)
    group.enter(Place.STEP, 3)
    group.begin_update()
    with ThreadPoolExecutor(1) as pool:
        frozen = pool.submit(group.freeze)
        time.sleep(0.2)
        was_frozen = frozen.done()

        group.enter(Place.BOUNDARY, 4)
        frozen.result(30)

    assert (was_frozen, group.place, group.step) == (False, Place.BOUNDARY, 4)


def test_rank_that_waits_after_it_has_stepped_is_frozen_at_once(ranks: Ranks) -> None:
    group = ranks.all[0]
    group.enter(Place.BOUNDARY, 3)
    group.enter(Place.STEP, 3)
    group.begin_update()
    works = [summed(group, torch.ones(1))]

    group.freeze()

    assert (group.place, group.has_updated) == (Place.STEP, True)
    works += [summed(ranks.all[rank], torch.ones(1)) for rank in (1, 2)]
    assert all(work.wait() for work in works)


def test_boundary_begins_again_with_the_same_numbers(ranks: Ranks) -> None:
    for group in ranks.all:
        group.enter(Place.BOUNDARY, 0)
    works = [summed(ranks.all[rank], torch.ones(1)) for rank in (0, 1)]
    ranks.lose(2)
    groups = ranks.connected_groups()

    for rank in (0, 1):
        ranks.all[rank].resume(groups[rank], plan(Place.BOUNDARY), {})

    for work in works:
        with pytest.raises(BoundaryRestarted):
            work.wait()
    ranks.all[2].connect(groups[2])
    again = [summed(group, torch.ones(1)) for group in ranks.all]
    assert all(work.wait() for work in again)
    assert {number for group in ranks.all for number in group.completed()} == {0}


def test_rank_between_two_collectives_restarts_its_boundary(ranks: Ranks) -> None:
    group = ranks.all[0]
    group.enter(Place.BOUNDARY, 0)
    group.interrupt()
    group.close(30)

    group.resume(ranks.connected_groups()[0], plan(Place.BOUNDARY), {})

    with pytest.raises(BoundaryRestarted):
        group.enter(Place.STEP, 0)


@pytest.mark.parametrize(("size", "is_kept"), [(8, True), (LARGE, False)])
def test_changed_result_is_kept_if_it_is_small(ranks: Ranks, size: int, is_kept: bool) -> None:
    tensors = [torch.ones(size) for _ in range(SIZE)]
    ranks.each(lambda rank: summed(ranks.all[rank], tensors[rank]).wait())

    tensors[0].add_(1)

    assert (0 in ranks.all[0].completed()) is is_kept
    assert (0 in ranks.all[0].changed()) is not is_kept
    assert ranks.all[1].result(0)[0].eq(SIZE).all()


def test_results_before_the_last_boundary_are_dropped(ranks: Ranks) -> None:
    def step(rank: int) -> frozenset[int]:
        group = ranks.all[rank]
        for place in (Place.BOUNDARY, Place.STEP, Place.BOUNDARY, Place.STEP):
            group.enter(place, 0)
            summed(group, torch.ones(1)).wait()
        return group.completed()

    assert ranks.each(step) == [frozenset({2, 3})] * SIZE


def test_every_collective_of_ddp_is_forwarded(ranks: Ranks) -> None:
    def collect(rank: int) -> list[float]:
        group = ranks.all[rank]
        options = BroadcastOptions()
        options.rootRank = 1
        own = torch.tensor([float(rank)])
        places = [torch.zeros(1) for _ in range(SIZE)]
        sent = own.clone()
        group.broadcast([sent], options).wait()
        group.allgather([places], [own]).wait()
        group.allreduce_coalesced([own]).wait()
        group.barrier().wait()
        return [sent.item(), *(place.item() for place in places), own.item()]

    assert ranks.each(collect) == [[1.0, 0.0, 1.0, 2.0, 3.0]] * SIZE


def test_rank_that_is_alone_sums_its_own_values() -> None:
    group = RecoverableGroup(1, SIZE)
    tensor = torch.tensor([4.0])

    assert summed(group, tensor).wait()
    assert (tensor.item(), group.completed()) == (4.0, frozenset())


def test_first_sum_of_a_step_is_announced_once() -> None:
    group, announced = RecoverableGroup(0, 1), []
    group.before_gradients = lambda: announced.append(time.monotonic())

    for place in (Place.BOUNDARY, Place.STEP):
        group.enter(place, 0)
        for _ in range(3):
            summed(group, torch.ones(1))

    assert len(announced) == 1


def test_default_group_of_a_new_rank_refuses_collectives() -> None:
    group = AbsentGroup(1, 2)

    assert group.barrier().wait()
    with pytest.raises(NotRecoverable, match="the script calls collectives"):
        group.allreduce([torch.ones(1)], dist.AllreduceCoalescedOptions())


def test_sums_before_the_loop_leave_no_copies(ranks: Ranks) -> None:
    tensors = [torch.ones(5) for _ in range(SIZE)]

    ranks.each(lambda rank: summed(ranks.all[rank], tensors[rank]).wait())

    assert not any(group._backups for group in ranks.all)


def test_sums_of_a_step_reuse_the_copies_of_the_last_one(ranks: Ranks) -> None:
    addresses = []
    for _ in range(2):
        for group in ranks.all:
            group.enter(Place.BOUNDARY, 0)
            group.enter(Place.STEP, 0)
        ranks.each(lambda rank: summed(ranks.all[rank], torch.ones(5)).wait())
        addresses.append({copy.data_ptr() for g in ranks.all for copy in g._backups.values()})

    assert len(addresses[0]) == SIZE
    assert addresses[0] == addresses[1]
