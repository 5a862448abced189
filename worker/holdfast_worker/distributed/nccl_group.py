"""An NCCL group whose collectives can be ended at any time, even if other ranks are gone.

NCCL notices the loss of a rank late or never: its kernels wait on the GPU, and the host continues without their results. Therefore
a thread waits for each collective on behalf of the host, and `end` aborts the communicator, which ends the kernels that wait.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from holdfast_worker.config import temporary_variables

ERRORS_ARE_IGNORED: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""torch reads these for each new group.
By default, an error in a collective ends the process, after a minute for dumps in which the group cannot be freed either."""

NO_DUMPS: Final = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""torch reads this for its default group. Otherwise, an error in any group makes it write a dump and end the process some minutes later."""

ABORT_TIMEOUT_S: Final = 10.0
"""Time for the communicator to be freed at the end of a rank.
A lower value frees it while the process ends, which may crash it; a higher value waits longer for a GPU that hangs."""


class NcclGroup:
    """An NCCL group of all ranks, each with a GPU of its own."""

    def __init__(
        self, store: PrefixStore, rank: int, size: int, timeout: timedelta, device: torch.device
    ) -> None:
        """Connect to all other ranks.

        Raises:
            RuntimeError: a rank is missing.
        """
        self._device = device
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout  # noqa: SLF001 - torch has no other name for it
        with temporary_variables(ERRORS_ARE_IGNORED):
            self.collectives: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        """The process group of torch."""
        self._connect(timeout)
        self._begun: queue.SimpleQueue[tuple[Any, Callable[[bool], None]] | None] = (
            queue.SimpleQueue()
        )
        self._is_aborted = False
        self._abort = threading.Thread(
            target=self.collectives.abort, name="holdfast-nccl-abort", daemon=True
        )
        self._waits = threading.Thread(target=self._wait_for_all, name="holdfast-nccl", daemon=True)
        self._waits.start()

    def watch(self, work: Any, on_end: Callable[[bool], None]) -> None:
        """Call `on_end` when a collective has ended on the GPU, with whether it is complete.

        The call is made in another thread.
        """
        self._begun.put((work, on_end))

    def abort(self) -> None:
        """Abort all collectives. Returns at once: they end soon after, or never if the GPU hangs."""
        if not self._is_aborted:
            self._is_aborted = True
            self._abort.start()
            self._begun.put(None)

    def close(self) -> None:
        """Free the communicator, after the last collective of all ranks."""
        self.abort()
        for thread in (self._abort, self._waits):
            thread.join(ABORT_TIMEOUT_S)

    def _connect(self, timeout: timedelta) -> None:
        """Connect in another thread, as NCCL waits for a rank that is lost in the meantime forever."""
        failures: list[RuntimeError] = []

        def connect() -> None:
            try:
                self.collectives.eager_connect_single_device(self._device)
            except RuntimeError as error:
                failures.append(error)

        thread = threading.Thread(target=connect, name="holdfast-nccl-connect", daemon=True)
        thread.start()
        thread.join(timeout.total_seconds())
        if failures:
            raise failures[0]
        if thread.is_alive():
            raise RuntimeError(f"NCCL has not connected all GPUs within {timeout}")

    def _wait_for_all(self) -> None:
        stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # of torch
        with torch.cuda.device(self._device):
            while begun := self._begun.get():
                work, on_end = begun
                has_failed = False
                try:
                    with torch.cuda.stream(stream):
                        work.wait()  # The stream waits, the host does not.
                        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                        event.record()
                    event.synchronize()
                except RuntimeError:
                    has_failed = True
                del work, begun
                # An aborted kernel ends like a complete one. A complete one may count as aborted, and is repeated.
                on_end(not has_failed and not self._is_aborted)
