"""In-process recovery of a rank: joins a new process group after the loss of other ranks.

A thread waits for a broken group. It asks the wrapper for a new one, which is formed when all ranks are there; then the ranks tell
each other their positions, hand out results and state as planned, and continue. Only the wrappers decide which ranks are lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from holdfast_worker.console import log_info
from holdfast_worker.distributed.connected_group import ConnectedGroup
from holdfast_worker.distributed.recoverable_group import RecoverableGroup
from holdfast_worker.distributed.recovery_plan import (
    NotRecoverable,
    Place,
    RankPosition,
    RecoveryPlan,
    plan_recovery,
)
from holdfast_worker.distributed.tensor_layout import DTYPES, NAMES
from holdfast_worker.protocol.reports import Json
from holdfast_worker.recovery.replication import Replication
from holdfast_worker.watchdog.group_files import GroupAnswer, GroupFiles, GroupRequest

CLOSE_TIMEOUT_S: Final = 10.0
"""Time for the collectives of a broken group to end.
A lower value gives up on a busy machine; a higher value pays for nodes that wait for a hung one."""
CONNECT_TIMEOUT: Final = timedelta(seconds=20)
"""Time for all ranks to connect and to exchange state.
A lower value fails on a slow network; a higher value pays for nodes that wait after another loss."""
INTERRUPT_POLL_S: Final = 0.2
"""Interval at which a rank looks whether the wrappers know of a loss that it has not noticed.
A lower value burns a core; a higher value delays the recovery from a node that is lost without closing its connections."""


@dataclass(frozen=True, slots=True)
class ReceivedState:
    """What a new rank needs to continue."""

    plan: RecoveryPlan
    tree: Any
    tensors: Sequence[Tensor]
    """What `Hooks.capture` returned on a survivor."""
    own: bytes
    """The state that was the former rank's alone, as `Replication` captures it."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A recovery from the loss of ranks."""

    step: int
    ranks: Sequence[int]
    """The ranks that were replaced."""
    cause: str
    paused_s: float
    """The longest time for which a survivor waited."""
    hosted_nodes: Sequence[int] = ()
    """Missing nodes whose ranks run on others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the recovery needs of a run."""

    step: Callable[[], int]
    """Number of completed steps, for messages."""
    obstacle: Callable[[], str]
    """Why a new rank cannot start from this rank's state now; empty if it can."""
    abandon: Callable[[], None]
    """Gives up what depends on a lost rank, such as a save in progress."""
    capture: Callable[[], tuple[Json, Sequence[Tensor]]]
    """The shared state, as a tree and tensors."""
    report: Callable[[Recovered], None]
    """Reports a recovery."""


class Recovery:
    """Keeps a rank in its process group."""

    def __init__(
        self,
        group: RecoverableGroup,
        files: GroupFiles,
        *,
        address: str,
        timeout: timedelta | None,
        is_new: bool,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`address`: the address of this node for other nodes.

        `timeout`: of collectives. `on_wait` is called while the rank waits.
        """
        self.group = group
        self.is_new = is_new
        """Whether this rank has not joined yet."""
        self.run = ("", 0)
        """Nonce and epoch of the run; see `WriterIdentity`."""
        self.hooks: Hooks | None = None
        self.recovered: Recovered | None = None
        """The last recovery."""
        self.replication: Replication | None = None
        self._files = files
        self._address = address
        self._timeout = timeout or dist.default_pg_timeout
        self._on_wait = on_wait
        self._give_up: Callable[[str], None] = print
        self._failed_s = 0.0
        self._moves = False
        """Whether the ranks have left their group so that some can move."""
        self._wakes = threading.Event()
        self._is_closed = False
        self._stores: list[TCPStore] = []
        """The stores of the current group; the group needs them."""
        group.on_failure = self._notice_failure

    def start(self, give_up: Callable[[str], None]) -> None:
        """Recover in the background from now on.

        `give_up` ends this rank if the ranks cannot continue in their processes. It is called with the reason.
        """
        self._give_up = give_up
        threading.Thread(target=self._run, name="holdfast-recovery", daemon=True).start()

    def close(self) -> None:
        """Stop recovering: the rank ends."""
        self._is_closed = True
        self._wakes.set()

    def join(self) -> ReceivedState:
        """Wait for the other ranks as a new rank, and receive the state.

        Raises:
            NotRecoverable: the ranks have to start again from a checkpoint.
        """
        self._failed_s = time.monotonic()
        # The wrapper of a node that replaces another one has to reach node 0 first, and node 0 may wait for this rank.
        self._files.announce_ready(self.group.rank())
        self._files.wait_for_decision(self._on_wait)
        self.group.generation = self._files.generation() - 1
        received = self._regroup()
        assert received, "a new rank receives a state"
        self.is_new = False
        return received

    def leave_group(self) -> None:
        """Leave the group at a boundary, as all ranks do, so that some can move."""
        self._moves = True
        self.group.interrupt()

    def _notice_failure(self) -> None:
        self._failed_s = time.monotonic()
        self._wakes.set()

    def _run(self) -> None:
        while True:
            if not self._wakes.wait(INTERRUPT_POLL_S) and self._is_lost_unnoticed():
                self.group.interrupt()
            if self._is_closed:
                return
            if self._wakes.is_set():
                self._wakes.clear()
                self._recover()

    def _is_lost_unnoticed(self) -> bool:
        """Whether the wrappers wait for a new group, and this rank still is in the former one."""
        answer = self._files.read_answer()
        return answer is not None and answer.generation > self.group.generation

    def _recover(self) -> None:
        if self.group.gpu:
            torch.cuda.set_device(self.group.gpu)  # Each thread has its own.
        try:
            self.group.close(CLOSE_TIMEOUT_S)
            self._abandon()
            self.group.freeze()
            self._regroup()
        except NotRecoverable as reason:
            self._give_up(str(reason))

    def _abandon(self) -> None:
        if not self.hooks or self.group.place is Place.OUTSIDE:
            raise NotRecoverable("a rank was lost outside of the training loop")
        self.hooks.abandon()

    def _regroup(self) -> ReceivedState | None:
        """Join a new group, and another one if a rank is lost in the meantime."""
        while True:
            self.group.generation += 1
            answer = self._ask()
            self.group.generation = answer.generation
            connected = None
            try:
                store = self._open_store(answer)
                rank, size = self.group.rank(), self.group.size()
                connected = ConnectedGroup(store, rank, size, CONNECT_TIMEOUT)
                return self._continue(connected, store, answer)
            except NotRecoverable:
                raise
            except (RuntimeError, OSError) as error:
                if connected:
                    connected.end()
                if self._is_closed:
                    raise NotRecoverable("the rank ends") from error
                log_info(f"another rank was lost while the ranks met: {str(error)[:200]}")

    def _ask(self) -> GroupAnswer:
        """Ask the wrapper for a group, and wait for it."""
        store = TCPStore(
            "0.0.0.0",  # noqa: S104 - other nodes connect to it, as to any rendezvous of torch
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=CONNECT_TIMEOUT,
        )
        self._stores = [store]
        request = GroupRequest(
            rank=self.group.rank(),
            generation=self.group.generation,
            address=f"{self._address}:{store.port}",
            is_new=self.is_new,
            moves=self._moves,
        )
        self._files.request(request)
        return self._files.wait(self.group.generation, self._on_wait)

    def _open_store(self, answer: GroupAnswer) -> PrefixStore:
        host, _, port = answer.address.rpartition(":")
        client = TCPStore(host, int(port), is_master=False, timeout=CONNECT_TIMEOUT)
        self._stores.append(client)
        return PrefixStore(str(answer.generation), client)

    def _continue(
        self, connected: ConnectedGroup, store: Store, answer: GroupAnswer
    ) -> ReceivedState | None:
        """Exchange what the ranks need, and resume."""
        rank, size = self.group.rank(), self.group.size()
        own = self._position()
        store.set(f"position/{rank}", own.dump())
        positions = {r: RankPosition.parse(store.get(f"position/{r}")) for r in range(size)}
        plan = plan_recovery(positions)
        new = [r for r, position in positions.items() if position.place is Place.NEW]
        began_s = time.monotonic()
        if self.group.gpu and not self.is_new:
            _wait_for_gpu(self.group.gpu)
        results = self._hand_out_results(connected, store, plan, positions)
        received = self._hand_out_state(connected, store, plan, new)
        if self.group.gpu:
            connected.connect_gpu(self.group.gpu)
        self._moves = False
        # No rank changes anything before all have what they need.
        connected.barrier()
        connected.set_timeout(self._timeout)
        if self.is_new:
            self.group.start(connected, plan, results)
        else:
            self.group.resume(connected, plan, results)
        waited_s = max(position.waited_s for position in positions.values())
        self.recovered = Recovered(
            plan.step, new, answer.cause, waited_s + time.monotonic() - began_s, answer.hosted
        )
        if self.hooks:
            self.hooks.report(self.recovered)
        return received

    def _position(self) -> RankPosition:
        if self.is_new:
            return RankPosition(place=Place.NEW)
        assert self.hooks, "a survivor has begun its loop"
        assert self.replication, "a survivor has begun its loop"
        step, place = self.group.step, self.group.place
        copies = self.replication.copies(step, is_settled=place is Place.STEP)
        return RankPosition(
            place=place,
            step=step,
            entry=self.group.entry,
            completed=self.group.completed(),
            changed=self.group.changed(),
            failed=frozenset(each.number for each in self.group.unfinished()),
            obstacle=self.hooks.obstacle(),
            holds=frozenset(copies),
            waited_s=time.monotonic() - self._failed_s,
        )

    def _hand_out_results(
        self,
        connected: ConnectedGroup,
        store: Store,
        plan: RecoveryPlan,
        positions: Mapping[int, RankPosition],
    ) -> dict[int, list[Tensor]]:
        """Send results to ranks that lack them, or receive those that this rank lacks."""
        rank = self.group.rank()
        results: dict[int, list[Tensor]] = {}
        for number, owner in plan.results.items():
            takers = [
                r for r, position in sorted(positions.items()) if plan.gives(number, position)
            ]
            key = f"result/{number}"
            if owner == rank:
                tensors = self.group.result(number)
                store.set(key, _dump_forms(tensors))
                for taker in takers:
                    connected.send(tensors, taker)
                if number not in self.group.completed():
                    raise NotRecoverable(f"the script changed the result of collective {number}")
            elif rank in takers:
                results[number] = _receive(connected, store.get(key), owner)
        return results

    def _hand_out_state(
        self, connected: ConnectedGroup, store: Store, plan: RecoveryPlan, new: Sequence[int]
    ) -> ReceivedState | None:
        """Send the state to new ranks, or receive it."""
        rank = self.group.rank()
        if rank == plan.source and new:
            assert self.hooks, "a survivor has begun its loop"
            tree, tensors = self.hooks.capture()
            store.set("state", json.dumps([tree, *self.run]))
            store.set("forms", _dump_forms(tensors))
            for taker in new:
                connected.send(tensors, taker)
        for taker, holder in plan.holders.items():
            if holder == rank:
                assert self.replication, "a survivor has begun its loop"
                copies = self.replication.copies(plan.step, is_settled=plan.place is Place.STEP)
                store.set(f"own/{taker}", copies[taker].decode())
        if rank not in new:
            return None
        tree, nonce, epoch = json.loads(store.get("state"))
        self.run = nonce, epoch
        tensors = _receive(connected, store.get("forms"), plan.source)
        return ReceivedState(plan, tree, tensors, store.get(f"own/{rank}"))


def _dump_forms(tensors: Sequence[Tensor]) -> str:
    return json.dumps([[list(tensor.shape), NAMES[tensor.dtype]] for tensor in tensors])


def _receive(connected: ConnectedGroup, forms: bytes, owner: int) -> list[Tensor]:
    tensors = [torch.empty(shape, dtype=DTYPES[name]) for shape, name in json.loads(forms)]
    connected.receive(tensors, owner)
    return tensors


def _wait_for_gpu(device: torch.device) -> None:
    """Wait until the GPU has done what the script has asked for.

    Raises:
        NotRecoverable: it does not, as it waits for a lost rank in a group of the script.
    """
    thread = threading.Thread(target=torch.cuda.synchronize, args=(device,), daemon=True)
    thread.start()
    thread.join(CLOSE_TIMEOUT_S)
    if thread.is_alive():
        raise NotRecoverable(
            "the GPU waits for a collective of the script, in which a lost rank takes part"
        )
