"""A process group whose collectives survive the loss of ranks.

It forwards collectives to a connected group and keeps what they need to be repeated: their inputs, and their results until the next step
boundary. After a failure it ends the connected group, waits for another one, and completes the failed collectives in it. The caller, such
as a backward pass of DDP, only notices that a collective takes longer. On a GPU, the host waits for each collective, as the GPU would
otherwise continue with the result of a failed one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
)
from torch.futures import Future

from holdfast_worker.distributed.collectives import BoundaryRestarted, Collective, RecoverableWork
from holdfast_worker.distributed.connected_group import ConnectedGroup, Issue
from holdfast_worker.distributed.recovery_plan import NotRecoverable, Place, RecoveryPlan

BACKEND: Final = "holdfast"
"""Name of the backend, as `torch.distributed` registers it."""

ABSENT: Final = "holdfast_absent"
"""Name of the backend of `AbsentGroup`."""

DEVICES: Final = ["cpu", "cuda"]
"""Devices of the tensors for which torch uses both backends."""

CLOSE_POLL_S: Final = 0.005
"""Interval at which a broken group is looked at.
A lower value burns a core; a higher value delays the next step."""

_ProcessGroup: Any = dist.ProcessGroup
"""Its methods are overloaded for both ways in which torch calls them; a subclass in Python gets only one."""


class RecoverableGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group of all ranks that outlives the connected groups in which it communicates."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._connected: ConnectedGroup | None = None
        """None: the rank is alone, or its group is broken."""
        self._groups = 0
        """Number of connected groups so far, which identifies the current one."""
        self._is_alone = True
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        """Notified of what `freeze` and a frozen rank wait for."""
        self._is_frozen = False
        self._log: dict[int, Collective] = {}
        """Collectives since the boundary before the current step, by number."""
        self._results: dict[int, list[Tensor]] = {}
        """Results of collectives that other ranks have completed and this one has not begun yet."""
        self._backups: dict[tuple[Place, int, int], Tensor] = {}
        self._next = 0
        self._is_failed = False
        self.generation = 0
        """Number of connected groups before the current one."""
        self.place = Place.OUTSIDE
        self.entry = 0
        """Number of collectives before the current boundary or step."""
        self.step = 0
        """Number of completed steps, as of `place`."""
        self.has_updated = False
        """Whether an optimizer has begun to change parameters within the current step."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called once for each broken connected group, in any thread."""
        self.on_boundary: Callable[[], None] = lambda: None
        """Called when a boundary begins, while the rank cannot be frozen."""
        self.before_gradients: Callable[[], None] = lambda: None
        """Called before the first sum of a step."""
        self._has_summed = False
        self._restarts = False
        """Whether the boundary begins again at its next collective or at its end."""
        self.gpu: torch.device | None = None
        """The GPU of this rank, if it has collectives of tensors there."""

    # What torch asks for.

    def getBackendName(self) -> str:  # noqa: N802 - of torch
        """The name of the backend."""
        return BACKEND

    def size(self) -> int:
        """The number of ranks."""
        return self._size

    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> RecoverableWork:
        """Sum tensors over the ranks, in place."""
        opts = opts or AllreduceOptions()
        if self.place is Place.STEP and not self._has_summed:
            self._has_summed = True
            self.before_gradients()
        return self._begin(lambda to: to.allreduce(tensors, opts), tensors, is_in_place=True)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> RecoverableWork:
        """Sum tensors over the ranks, in place."""
        opts = opts or AllreduceCoalescedOptions()
        return self._begin(
            lambda to: to.allreduce_coalesced(tensors, opts), tensors, is_in_place=True
        )

    def broadcast(self, tensors: list[Tensor], opts: Any) -> RecoverableWork:
        """Fill tensors with those of one rank."""
        return self._begin(lambda to: to.broadcast(tensors, opts), tensors)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> RecoverableWork:
        """Gather tensors of all ranks."""
        opts = opts or AllgatherOptions()
        return self._begin(
            lambda to: to.allgather(outputs, inputs, opts),
            [tensor for some in outputs for tensor in some],
        )

    def barrier(self, opts: Any = None) -> RecoverableWork:
        """Wait for all ranks."""
        opts = opts or BarrierOptions()
        return self._begin(lambda to: to.barrier(opts), [])

    def abort(self) -> None:
        """Abort all collectives."""
        if self._connected is not None:
            self._connected.end()

    # What the recovery asks for.

    def use_gpu(self, device: torch.device) -> None:
        """Communicate between the GPUs of all ranks, too.

        A collective call, unless this rank is alone.

        Raises:
            RuntimeError: a rank is missing.
        """
        self.gpu = device
        if self._connected is not None:
            self._connected.connect_gpu(device)

    def disconnect_gpu(self) -> None:
        """Leave the group of the GPUs, after the last collective of all ranks."""
        if self._connected is not None:
            self._connected.disconnect_gpu()

    def connect(self, connected: ConnectedGroup) -> None:
        """Communicate in this group. Before, the rank is alone."""
        with self._lock:
            self._connected, self._is_failed, self._is_alone = connected, False, False
            self._groups += 1
            self._is_frozen = False
            self._moved.notify_all()

    def freeze(self) -> None:
        """Keep this rank from moving on until it is connected again.

        Its position and its state hold until then. If an optimizer has stepped within the step, this first waits for the end of
        the step, unless a collective prevents it.
        """
        with self._lock:
            while self.place is Place.STEP and self.has_updated and not self.unfinished():
                self._moved.wait()
            self._is_frozen = True

    def begin_update(self) -> None:
        """Before an optimizer changes parameters: wait while this rank is frozen."""
        with self._lock:
            self._wait_while_frozen()
            self.has_updated = True

    def enter(self, place: Place, step: int) -> None:
        """Enter a boundary, a step, or leave the loop, after `step` completed steps.

        Waits while this rank is frozen.

        Raises:
            BoundaryRestarted: the boundary that this would end begins again.
        """
        with self._lock:
            self._wait_while_frozen()
            if place is Place.BOUNDARY:
                self.on_boundary()
            else:
                self._restart_if_due()
            self._restarts = False
            if place is Place.STEP:
                # Every rank has reached this boundary, so none needs earlier results.
                for number in [n for n in self._log if n < self.entry]:
                    del self._log[number]
                self._has_summed = self.has_updated = False
            self.place, self.entry, self.step = place, self._next, step
            self._moved.notify_all()

    def start(
        self, connected: ConnectedGroup, plan: RecoveryPlan, results: dict[int, list[Tensor]]
    ) -> None:
        """Start a new rank, with results of collectives that other ranks have completed already."""
        with self._lock:
            self._log.clear()
            self._results = results
            self._next = self.entry = plan.entry
            self.place, self.step = plan.place, plan.step
            self._has_summed = self.has_updated = False
            self.connect(connected)

    def completed(self) -> frozenset[int]:
        """Collectives whose results are still here."""
        with self._lock:
            return frozenset(n for n, each in self._log.items() if each.has_result)

    def changed(self) -> frozenset[int]:
        """Completed collectives whose results the script has changed in place."""
        with self._lock:
            return frozenset(
                n for n, each in self._log.items() if each.is_completed and not each.has_result
            )

    def unfinished(self) -> list[Collective]:
        """Collectives that have begun and are not completed, in order."""
        with self._lock:
            return [each for _, each in sorted(self._log.items()) if not each.is_completed]

    def result(self, number: int) -> list[Tensor]:
        """The result of a completed collective."""
        return self._log[number].result

    def resume(
        self,
        connected: ConnectedGroup,
        plan: RecoveryPlan,
        results: Mapping[int, Sequence[Tensor]],
    ) -> None:
        """Continue in a new connected group.

        Failed collectives get the results of other ranks, or are repeated. If the boundary begins again, they are void.
        `results` may contain those of collectives that this rank has not begun yet.
        """
        with self._lock:
            for number, tensors in results.items():
                if number in self._log:
                    self._accept(self._log[number], tensors)
                else:
                    self._results[number] = [*tensors]
            unfinished = self.unfinished()
            here = self.place, self.entry
            is_restarted = plan.restarts_boundary and here == (Place.BOUNDARY, plan.entry)
            self.connect(connected)
            if not is_restarted:
                for collective in unfinished:
                    collective.reset()
                    self._issue(collective)
                return
            # Without a failed collective, the rank is between two of them.
            self._restarts = not unfinished
            self._next = plan.entry
            for number in [n for n in self._log if n >= plan.entry]:
                del self._log[number]
        for collective in unfinished:
            collective.is_void = True
            collective.future.set_result([])

    def interrupt(self) -> None:
        """Break the current group, because another rank is lost."""
        with self._lock:
            if self._is_failed or self._connected is None:
                return
            self._is_failed = True
        self.on_failure()

    def close(self, within_s: float) -> None:
        """Leave a broken group, once it changes no tensors any more.

        Other ranks notice that their connections end, and leave it as well.

        Raises:
            NotRecoverable: it still does after `within_s`.
        """
        if self._connected is None:
            return
        until_s = time.monotonic() + within_s
        while True:
            # Again, as a collective that began in the meantime is not aborted by an earlier call.
            self._connected.end()
            running = {
                each.number: each.begun
                for each in self.unfinished()
                if each.begun and not each.begun.has_ended
            }
            if not running or self._connected.abandon_stopped([*running.values()]):
                break
            if time.monotonic() > until_s:
                raise NotRecoverable(f"collective {min(running)} did not end")
            time.sleep(CLOSE_POLL_S)
        for collective in self.unfinished():
            collective.begun = None
        self._connected = None  # Its destructor closes the connections.

    def _wait_while_frozen(self) -> None:
        while self._is_frozen:
            self._moved.wait()

    def _restart_if_due(self) -> None:
        if self._restarts:
            self._restarts = False
            raise BoundaryRestarted

    def _begin(
        self, issue: Issue, tensors: list[Tensor], *, is_in_place: bool = False
    ) -> RecoverableWork:
        with self._lock:
            self._restart_if_due()
            collective = Collective(self._next, issue, tensors, [], _future_of(tensors))
            if self._is_alone:  # A sum is the value itself.
                self._complete(collective)
                return RecoverableWork(collective)
            self._next += 1
            self._log[collective.number] = collective
            self._moved.notify_all()
            if (result := self._results.pop(collective.number, None)) is not None:
                self._accept(collective, result)
                return RecoverableWork(collective)
            if is_in_place:
                collective.inputs = self._back_up(collective.number - self.entry, tensors)
            if not self._is_failed:
                self._issue(collective)
        return RecoverableWork(collective)

    def _accept(self, collective: Collective, result: Sequence[Tensor]) -> None:
        """Complete a collective with the result of another rank."""
        for tensor, received in zip(collective.tensors, result, strict=True):
            tensor.copy_(received)
        self._complete(collective)

    def _back_up(self, number: int, tensors: list[Tensor]) -> list[Tensor]:
        """Copy tensors into buffers that the same collective of the last step has used."""
        if self.place is Place.OUTSIDE:
            # Not kept, as these collectives are not those of a step. One of them is the warm-up of DDP, with all gradients.
            return [tensor.detach().clone() for tensor in tensors]
        copies = []
        for position, tensor in enumerate(tensors):
            key = self.place, number, position
            buffer = self._backups.get(key)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = self._backups[key] = torch.empty_like(tensor)
            copies.append(buffer.copy_(tensor))
        return copies

    def _issue(self, collective: Collective) -> None:
        number, connected = self._groups, self._connected
        assert connected, "a broken group is not used"

        def end(is_complete: bool) -> None:
            if is_complete:
                self._complete(collective)
            else:
                self._break(number)

        try:
            collective.begun = connected.begin(collective.issue, collective.tensors, end)
        except RuntimeError:  # Also the subclasses of torch.distributed.
            self._break(number)

    def _complete(self, collective: Collective) -> None:
        with self._lock:
            collective.complete()
        collective.future.set_result(collective.tensors)

    def _break(self, number: int) -> None:
        """Leave a broken group, which breaks it on all other ranks as well."""
        if number == self._groups:
            self.interrupt()


class AbsentGroup(_ProcessGroup):  # type: ignore[misc]
    """The default group of a rank that joined later: the ranks have no common one any more."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size

    def getBackendName(self) -> str:  # noqa: N802 - of torch
        """The name of the backend."""
        return ABSENT

    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    def size(self) -> int:
        """The number of ranks."""
        return self._size

    def barrier(self, opts: Any = None) -> RecoverableWork:  # noqa: ARG002 - of torch
        """Return at once: the other ranks have passed the barriers before their loop."""
        done: Future[list[Tensor]] = Future()
        done.set_result([])
        return RecoverableWork(Collective(0, _refuse, [], [], done))

    def allreduce(self, *_given: Any) -> RecoverableWork:
        """Refuse."""
        return _refuse()

    allreduce_coalesced = broadcast = allgather = send = recv = allreduce


def _future_of(tensors: Sequence[Tensor]) -> Future[list[Tensor]]:
    """A future of these tensors; for those on a GPU, it must name the device."""
    return Future(devices=sorted({t.device for t in tensors if t.is_cuda}, key=str))


def _refuse(*_given: Any) -> RecoverableWork:
    raise NotRecoverable(
        "the script calls collectives of torch.distributed, in which a rank that replaces a lost one cannot take part"
    )


def create(_store: Any, rank: int, size: int, _timeout: timedelta) -> RecoverableGroup:
    """Create a group, as `torch.distributed` does for a registered backend."""
    return RecoverableGroup(rank, size)


def register() -> None:
    """Make the backend known to `torch.distributed`."""
    if BACKEND.upper() not in dist.Backend._plugins:  # noqa: SLF001 - torch has no other way to ask
        dist.Backend.register_backend(BACKEND, create, devices=DEVICES)
        dist.Backend.register_backend(
            ABSENT, lambda _store, rank, size, _timeout: AbsentGroup(rank, size), devices=DEVICES
        )
