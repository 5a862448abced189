"""The ranks of a run: the process group, this rank's device, and what all of them agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

from holdfast_worker.config import WRAPPER, environment
from holdfast_worker.console import log_info, print_line
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.protocol.reports import RANK_LINE
from holdfast_worker.topology.identity import RankIdentity, RankSource
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter

NOBODY: Final = -1.0


class ProcessGroup:
    """This rank among all. What is agreed goes over a CPU group of its own, so that no GPU is waited for."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: torch.device,
        votes: dist.ProcessGroup | None,
        beat: HeartbeatWriter | None = None,
    ) -> None:
        """`beat` tells when this rank waits for the others; None: nobody wants to know."""
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self._votes = votes
        """None: alone, without any process group."""
        self._beat = beat or HeartbeatWriter()

    @classmethod
    def one(cls) -> Self:
        """A process that is alone, on the CPU."""
        return cls(0, 1, torch.device("cpu"), None)

    @classmethod
    def join(
        cls,
        who: RankIdentity,
        *,
        beat: HeartbeatWriter | None = None,
        patience: timedelta | None = None,
    ) -> Self:
        """Meet the other ranks, unless a framework has done so before; a script with nothing around it is alone at once.

        `patience` is how long one waits for another before torch gives up; None: as torch has it, 10 or 30 minutes.

        Raises:
            SystemExit: this machine has not what the rank needs.
        """
        beat = beat or HeartbeatWriter()
        if who.has_agent:
            # torchrun by hand: with a killed agent the node is gone for all others. Its ranks would train on for nobody, and
            # nobody would begin again without it.
            die_with_parent()
        try:
            device = device_of(who, torch.cuda.device_count())
        except ValueError as error:
            log_info(str(error))
            raise SystemExit(Exit.USAGE) from error
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if who.teller is not RankSource.NOBODY and not environment().get(WRAPPER):
            print_line(RANK_LINE.format(rank=who.rank, world_size=who.world_size))
        if who.meeting is None:
            return cls(who.rank, who.world_size, device, None, beat)
        backend = who.backend or ("nccl" if device.type == "cuda" else "gloo")
        if backend == "gloo" and get_debug_level() == DebugLevel.DETAIL:
            # DDP takes the wrapper in which torch then puts the group for a group of gloo, and is killed by signal 11.
            set_debug_level(DebugLevel.INFO)
            if who.rank == 0:
                log_info(
                    "TORCH_DISTRIBUTED_DEBUG=DETAIL is taken for INFO, as torch falls over it with gloo"
                )
        with beat.agreeing():
            if not dist.is_initialized():
                dist.init_process_group(
                    backend,
                    init_method=who.meeting,
                    rank=who.rank,
                    world_size=who.world_size,
                    device_id=device if backend == "nccl" else None,
                    timeout=patience,
                )
            votes = dist.new_group(backend="gloo", timeout=patience)
        return cls(who.rank, who.world_size, device, votes, beat)

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        """Of each number, the largest that any rank has."""
        if self._votes is None:
            return list(numbers)
        column = torch.tensor(numbers, dtype=torch.float64)
        with self._beat.agreeing():
            dist.all_reduce(column, dist.ReduceOp.MAX, group=self._votes)
        largest: list[float] = column.tolist()
        return largest

    def all_gather(self, number: float) -> list[float]:
        """The numbers that the ranks have, by rank; none of them is minus infinity."""
        return self.all_reduce_max(
            [number if r == self.rank else -math.inf for r in range(self.world_size)]
        )

    def broadcast(self, text: str, source: int = 0) -> str:
        """What the rank `source` has to say, on every rank."""
        if self._votes is None:
            return text
        data = text.encode()
        size = int(self.all_reduce_max([float(len(data)) if self.rank == source else NOBODY])[0])
        buffer = torch.zeros(size, dtype=torch.uint8)
        if self.rank == source and data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if size:
            with self._beat.agreeing():
                dist.broadcast(buffer, source, group=self._votes)
        return buffer.numpy().tobytes().decode()

    def spread(self, buffer: Tensor, source: int) -> None:
        """Fill a buffer of bytes on the CPU with what is in that of the rank `source`."""
        if self._votes is None:
            return
        with self._beat.agreeing():
            if self.device.type == "cuda":
                # By the links between the GPUs, which are ten times faster than the network of the hosts.
                carried = buffer.to(self.device)
                dist.broadcast(carried, source)
                buffer.copy_(carried)
            else:
                dist.broadcast(buffer, source, group=self._votes)

    def first_message(self, text: str) -> str:
        """What the lowest rank that has anything to say says, on every rank; empty if none has."""
        speaker = self.all_reduce_max([float(self.world_size - self.rank) if text else NOBODY])[0]
        return "" if speaker == NOBODY else self.broadcast(text, self.world_size - int(speaker))

    def leave(self) -> None:
        """Take the process group down. Not after an error: the others may be gone, and would be waited for."""
        if self._votes is not None and dist.is_initialized():
            dist.destroy_process_group()
        # The last reference: its threads end here. Those that outlive the interpreter can abort the process as they
        # let go of the tensors of the last vote.
        self._votes = None


def device_of(who: RankIdentity, gpus: int) -> torch.device:
    """The device of a rank on a machine with so many GPUs: one for each, or the CPU for all.

    Raises:
        ValueError: there are not enough, or none for NCCL.
    """
    if not gpus:
        if who.backend == "nccl":
            raise ValueError(
                f"{Env.BACKEND} is nccl, but this machine has no GPU that can be used: write gloo, or leave it out"
            )
        return torch.device("cpu")
    if who.local_rank >= gpus:
        raise ValueError(
            f"local rank {who.local_rank} has no GPU of its own, as this machine has {gpus}: "
            f"start one rank for each, as with --nproc-per-node {gpus}"
        )
    return torch.device("cuda", who.local_rank)
