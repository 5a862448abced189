"""The process group of a run, this rank's device, and collectives over the ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    DebugLevel,
    HashStore,
    PrefixStore,
    get_debug_level,
    set_debug_level,
)

from holdfast_worker.config import WRAPPER, environment, temporary_variables
from holdfast_worker.console import log_info, print_line
from holdfast_worker.distributed import recoverable_group
from holdfast_worker.distributed.connected_group import ConnectedGroup
from holdfast_worker.distributed.nccl_group import NO_DUMPS
from holdfast_worker.distributed.recoverable_group import RecoverableGroup
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.protocol.reports import RANK_LINE
from holdfast_worker.topology.identity import RankIdentity, RankSource
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter

NO_RANK: Final = -1.0


class ProcessGroup:
    """This rank among all. Votes use a separate CPU group, so that they do not wait for a GPU."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: torch.device,
        votes: dist.ProcessGroup | None,
        heartbeat: HeartbeatWriter | None = None,
        *,
        recoverable: RecoverableGroup | None = None,
    ) -> None:
        """`heartbeat` shows when this rank waits for others."""
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self._cpu_group = votes
        """None: a single process without a process group."""
        self._heartbeat = heartbeat or HeartbeatWriter()
        self.recoverable = recoverable
        """The group of all ranks, if it outlives the loss of some; None if it does not."""

    @classmethod
    def single(cls) -> Self:
        """A single process on the CPU."""
        return cls(0, 1, torch.device("cpu"), None)

    @classmethod
    def join(
        cls,
        identity: RankIdentity,
        *,
        heartbeat: HeartbeatWriter | None = None,
        timeout: timedelta | None = None,
        is_recoverable: bool = False,
        joins: bool = False,
    ) -> Self:
        """Join the ranks; reuse the default group of a framework.

        A script without a launcher runs alone.

        `timeout` is the timeout of collectives; None: torch's default of 10 or 30 minutes. `is_recoverable`: the group outlives
        the loss of ranks, if it can. `joins`: the rank replaces a lost one; it connects later.

        Raises:
            SystemExit: this machine lacks a device for the rank.
        """
        heartbeat = heartbeat or HeartbeatWriter()
        if identity.has_agent:
            # torchrun without the wrapper: other nodes consider this node dead once its agent is killed. Its ranks
            # would continue to train, and no agent would restart them.
            die_with_parent()
        try:
            device = device_for(identity, torch.cuda.device_count())
        except ValueError as error:
            log_info(str(error))
            raise SystemExit(Exit.USAGE) from error
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if identity.source is not RankSource.NONE and not environment().get(WRAPPER):
            print_line(RANK_LINE.format(rank=identity.rank, world_size=identity.world_size))
        if identity.init_method is None:
            return cls(identity.rank, identity.world_size, device, None, heartbeat)
        backend = identity.backend or ("nccl" if device.type == "cuda" else "gloo")
        if backend == "gloo" and get_debug_level() == DebugLevel.DETAIL:
            # torch wraps gloo groups at this level, and DDP crashes with signal 11 on the wrapper.
            set_debug_level(DebugLevel.INFO)
            if identity.rank == 0:
                log_info(
                    "TORCH_DISTRIBUTED_DEBUG=DETAIL is replaced by INFO, because torch crashes with DETAIL and gloo"
                )
        if is_recoverable and _can_recover(backend, device) and not dist.is_initialized():
            group = _open_recoverable(identity, backend, heartbeat, timeout, joins=joins)
            return cls(
                identity.rank, identity.world_size, device, group, heartbeat, recoverable=group
            )
        with heartbeat.waiting_for_ranks():
            if not dist.is_initialized():
                dist.init_process_group(
                    backend,
                    init_method=identity.init_method,
                    rank=identity.rank,
                    world_size=identity.world_size,
                    device_id=device if backend == "nccl" else None,
                    timeout=timeout,
                )
            votes = dist.new_group(backend="gloo", timeout=timeout)
        return cls(identity.rank, identity.world_size, device, votes, heartbeat)

    def connect_gpu(self) -> list[int] | None:
        """Connect this rank's GPU to the others for DDP; return its number, None without a GPU.

        A collective call, unless this rank replaces a lost one.
        """
        if self.device.type != "cuda":
            return None
        if self.recoverable is not None:
            self.recoverable.use_gpu(self.device)
        return [self.device.index]

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        """The maximum of each number over all ranks."""
        if self._cpu_group is None:
            return list(numbers)
        column = torch.tensor(numbers, dtype=torch.float64)
        with self._heartbeat.waiting_for_ranks():
            dist.all_reduce(column, dist.ReduceOp.MAX, group=self._cpu_group)
        largest: list[float] = column.tolist()
        return largest

    def all_gather(self, number: float) -> list[float]:
        """The numbers of all ranks, by rank; each must exceed minus infinity."""
        return self.all_reduce_max(
            [number if r == self.rank else -math.inf for r in range(self.world_size)]
        )

    def gather_text(self, text: str) -> list[str]:
        """The texts of all ranks, by rank."""
        data = text.encode()
        sizes = [int(size) for size in self.all_gather(float(len(data)))]
        start = sum(sizes[: self.rank])
        mine = [0.0] * sum(sizes)
        mine[start : start + len(data)] = map(float, data)
        whole = bytes(map(int, self.all_reduce_max(mine)))
        ends = list(itertools.accumulate(sizes))
        return [whole[end - size : end].decode() for end, size in zip(ends, sizes, strict=True)]

    def broadcast(self, text: str, source: int = 0) -> str:
        """Return the text of rank `source` on every rank."""
        if self._cpu_group is None:
            return text
        data = text.encode()
        size = int(self.all_reduce_max([float(len(data)) if self.rank == source else NO_RANK])[0])
        buffer = torch.zeros(size, dtype=torch.uint8)
        if self.rank == source and data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if size:
            with self._heartbeat.waiting_for_ranks():
                dist.broadcast(buffer, source, group=self._cpu_group)
        return buffer.numpy().tobytes().decode()

    def broadcast_buffer(self, buffer: Tensor, source: int) -> None:
        """Fill a CPU byte buffer with that of rank `source`."""
        if self._cpu_group is None:
            return
        with self._heartbeat.waiting_for_ranks():
            if self.device.type == "cuda":
                # Over the links between GPUs, which are ten times faster than the network of the hosts.
                carried = buffer.to(self.device)
                uses_gpu = self.recoverable is not None and self.recoverable.gpu is not None
                dist.broadcast(carried, source, group=self.recoverable if uses_gpu else None)
                buffer.copy_(carried)
            else:
                dist.broadcast(buffer, source, group=self._cpu_group)

    def first_message(self, text: str) -> str:
        """Return the message of the lowest rank that has one on every rank; empty if none has."""
        sender = self.all_reduce_max([float(self.world_size - self.rank) if text else NO_RANK])[0]
        return "" if sender == NO_RANK else self.broadcast(text, self.world_size - int(sender))

    def destroy(self) -> None:
        """Destroy the process group. Call only without errors: this waits for the other ranks."""
        if self.recoverable is not None:
            self.recoverable.disconnect_gpu()
        if self._cpu_group is not None and dist.is_initialized():
            dist.destroy_process_group()
        # Drop the last reference, so that the group's threads end here. Threads that outlive the interpreter can abort
        # the process when they release the tensors of the last vote.
        self._cpu_group = None


def _can_recover(backend: str, device: torch.device) -> bool:
    """Whether collectives of tensors on a device can be repeated.

    gloo copies a result to the GPU after the collective has ended.
    """
    return backend == "nccl" or device.type == "cpu"


def _open_recoverable(
    identity: RankIdentity,
    backend: str,
    heartbeat: HeartbeatWriter,
    timeout: timedelta | None,
    *,
    joins: bool,
) -> RecoverableGroup:
    """A group that outlives the loss of ranks, beside torch's default group, which does not."""
    recoverable_group.register()
    rank, size = identity.rank, identity.world_size
    if joins:
        dist.init_process_group(
            recoverable_group.ABSENT, store=HashStore(), rank=rank, world_size=size, timeout=timeout
        )
        group = dist.new_group(backend=recoverable_group.BACKEND)
        assert isinstance(group, RecoverableGroup), "the backend is ours"
        return group
    with heartbeat.waiting_for_ranks():
        # Without a device, NCCL connects the default group only if the script uses it.
        with temporary_variables(NO_DUMPS):
            dist.init_process_group(
                backend,
                init_method=identity.init_method,
                rank=rank,
                world_size=size,
                timeout=timeout,
            )
        group = dist.new_group(backend=recoverable_group.BACKEND)
        assert isinstance(group, RecoverableGroup), "the backend is ours"
        store = PrefixStore(recoverable_group.BACKEND, dist.distributed_c10d._get_default_store())  # noqa: SLF001 - torch has no other way to it
        group.connect(ConnectedGroup(store, rank, size, timeout or dist.default_pg_timeout))
    return group


def device_for(identity: RankIdentity, gpus: int) -> torch.device:
    """The device of a rank on a machine with `gpus` GPUs: one GPU, or the CPU without GPUs.

    Raises:
        ValueError: there are too few GPUs, or none for NCCL.
    """
    if not gpus:
        if identity.backend == "nccl":
            raise ValueError(
                f"{Env.BACKEND} is nccl, but this machine has no usable GPU: set it to gloo, or unset it"
            )
        return torch.device("cpu")
    if identity.local_rank >= gpus:
        raise ValueError(
            f"local rank {identity.local_rank} has no GPU of its own, because this machine has {gpus}: "
            f"start one rank for each GPU, for example with --nproc-per-node {gpus}"
        )
    return torch.device("cuda", identity.local_rank)
