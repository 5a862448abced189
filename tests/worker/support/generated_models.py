"""Models that are generated from a seed, saved by one to three ranks and resumed by as many.

State that differs between ranks or cannot be saved has to be refused by its name. The ranks are threads of one process,
and their models are wrapped by DDP over a group of one: comparison and division depend on names, types and values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from threading import Barrier, BrokenBarrierError
from typing import Any, Final

import torch
from holdfast_worker.checkpoint.checksums import tensor_bytes
from holdfast_worker.checkpoint.host_memory import StagingBuffer
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import restore
from holdfast_worker.checkpoint.save_plan import SavePlanner
from holdfast_worker.checkpoint.snapshot import stage
from holdfast_worker.checkpoint.state_consistency import (
    InconsistentState,
    check_consistency,
    first_difference,
)
from holdfast_worker.checkpoint.state_dict import UnserializableState
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.checkpoint.writer import AsyncWriter, WriterIdentity
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.sharding import local_memory
from holdfast_worker.distributed.weight_samples import VALUES_PER_TENSOR
from holdfast_worker.telemetry.reporter import Reporter
from torch import Generator, Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from worker.support.stores import LATER_S, MemoryStore

UNSUPPORTED: Final = {
    *(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)),
    *(torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4),
}
"""Types that torch cannot copy, or that need more than their bytes."""
SUPPORTED: Final = sorted(
    {v for v in vars(torch).values() if isinstance(v, torch.dtype)} - UNSUPPORTED, key=str
)
TRAINED: Final = (torch.float32, torch.float64, torch.bfloat16)
NAMES: Final = ("scale", "scale_ema", "scale_", "embed", "embed_avg", "h", "state", "0")
SHAPES: Final = ((), (0,), (3, 0), (1,), (7,), (4, 6), (2, 3, 4), (70, 9))


class ThreadRendezvous:
    """Rendezvous of ranks that are threads."""

    def __init__(self, world_size: int) -> None:
        self.barrier = Barrier(world_size, timeout=60)
        self.table: list[Any] = [None] * world_size


class ThreadGroup(ProcessGroup):
    """The process group of a rank that is a thread."""

    def __init__(self, rank: int, world_size: int, rendezvous: ThreadRendezvous) -> None:
        super().__init__(rank, world_size, torch.device("cpu"), None)
        self._rendezvous = rendezvous

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        return [max(column) for column in zip(*self._exchange(list(numbers)), strict=True)]

    def broadcast(self, text: str, source: int = 0) -> str:
        return str(self._exchange(text)[source])

    def _exchange(self, mine: Any) -> list[Any]:
        """Values of all ranks, by rank."""
        self._rendezvous.table[self.rank] = mine
        self._rendezvous.barrier.wait()
        all_values = list(self._rendezvous.table)
        self._rendezvous.barrier.wait()
        return all_values


class Net(nn.Module):
    """A module with generated parameters and buffers."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


class StatefulObject:
    """An object with a state that is no module."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class GeneratedState:
    """Tracked state of a rank.

    One seed determines its structure, and another one its values; per-rank state has a seed for each rank.
    """

    def __init__(self, seed: int, values: int, group: ProcessGroup) -> None:
        self.form = Random(seed)
        shared = Generator().manual_seed(values)
        own = Generator().manual_seed(values + 7919 * (group.rank + 1))
        is_wrapped, is_apart = self.form.random() < 0.6, self.form.random() < 0.2
        per_rank = ["kept"] if self.form.random() < 0.5 else []
        of_weights = own if is_apart else shared
        net = self._module(of_weights, own if is_wrapped or is_apart else shared, depth=2)
        optimizer = self._optimizer(net, of_weights)
        model = DistributedDataParallel(net, init_sync=False) if is_wrapped else net
        self.net, self.is_apart, self.is_divided = net, is_apart, is_wrapped and not is_apart
        self.kept = StatefulObject({"tree": self._tree(own if per_rank else shared, depth=3)})
        self.plain = StatefulObject(
            {"w": torch.rand(9, generator=shared), "n": [1.5, {"k": values}]}
        )
        self.tracked = TrackedState(
            {"model": model, "optimizer": optimizer, "kept": self.kept, "plain": self.plain},
            per_rank,
            [net] if is_apart else [],
        )

    def _module(self, of_weights: Generator, of_buffers: Generator, depth: int) -> Net:
        net, names = Net(), list(NAMES)
        self.form.shuffle(names)
        weight = torch.randn(self.form.choice([5, 40]), generator=of_weights)
        net.register_parameter(names.pop(), nn.Parameter(weight.to(self.form.choice(TRAINED))))
        for _ in range(self.form.randrange(4)):
            net.register_buffer(names.pop(), self._tensor(of_buffers))
        if self.form.random() < 0.3:
            net.extra = self._tree(
                of_weights if of_weights is of_buffers else Generator().manual_seed(1), 1
            )
        if depth and self.form.random() < 0.5:
            net.inner = self._module(of_weights, of_buffers, depth - 1)
        if self.form.random() < 0.3:
            net.register_parameter(names.pop(), self.form.choice(list(net.parameters())))  # Tied.
        return net

    def _optimizer(self, net: nn.Module, values: Generator) -> torch.optim.Optimizer:
        optimizer = self.form.choice([torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD])(
            net.parameters()
        )
        if self.form.random() < 0.8:
            for parameter in net.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=values).to(parameter.dtype)
            optimizer.step()
        return optimizer

    def _tensor(self, values: Generator) -> Tensor:
        dtype, shape = self.form.choice(SUPPORTED), self.form.choice(SHAPES)
        count = torch.Size(shape).numel() * dtype.itemsize
        bits = torch.randint(
            2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8, generator=values
        )
        whole = bits.view(dtype).reshape(shape)
        ways = [whole, whole.t() if whole.dim() == 2 else whole]
        if dtype in (torch.float32, torch.int64, torch.complex64) and whole.dim():
            ways += [whole[::2]]
        if dtype in (torch.complex64, torch.complex128):
            ways += [whole.conj(), whole.conj().imag]
        return self.form.choice(ways)

    def _tree(self, values: Generator, depth: int) -> Any:
        number = int(torch.randint(1 << 40, (), generator=values))
        leaf = [
            number,
            number / 7,
            float("nan"),
            "text",
            None,
            True,
            b"bytes",
            self._tensor(values),
        ]
        if not depth or self.form.random() < 0.3:
            return self.form.choice(leaf)
        parts = [self._tree(values, depth - 1) for _ in range(self.form.randrange(1, 4))]
        forms = [
            parts,
            tuple(parts),
            dict(enumerate(parts)),
            {f"k{i}": p for i, p in enumerate(parts)},
        ]
        return self.form.choice(forms)

    def everything(self) -> tuple[Any, dict[str, bytes]]:
        """All values as bytes."""
        trees, encoder = self.tracked.encode()
        return trees, {n: bytes(tensor_bytes(local_memory(t))) for n, t in encoder.tensors.items()}


def is_refused(generated: GeneratedState, ranks: ProcessGroup, name: str) -> bool:
    """Whether all ranks refuse to track the state and name the reason."""
    try:
        check_consistency(generated.tracked, ranks)
    except (InconsistentState, UnserializableState) as error:
        return str(error).startswith(f"{name} ")
    return False


def change(generated: GeneratedState, chance: Random) -> str:
    """Change a value on this rank only and return its name."""
    state = generated.plain.state
    match chance.randrange(4 if generated.is_apart else 5):
        case 0:
            state["w"][chance.randrange(9)] += 1
            return "plain.w"
        case 1:
            state["w"] = state["w"].double()
            return "plain.w"
        case 2:
            state["n"][1]["k"] += 1
            return "plain.n[1].k"
        case 3:
            state["more"] = 1
            return "plain.more"
        case _:
            generated.net.register_buffer("late", torch.ones(2))
            return "model.late"


def part(generated: GeneratedState) -> str:
    """Change a value that DDP keeps equal on this rank only and return the prefix of its name.

    The prefix is empty if no tensor is large enough to be compared.
    """
    for parameter in generated.net.parameters():
        if parameter.numel() >= VALUES_PER_TENSOR:
            parameter.data += 3
            return "model."
    return ""


def add_unsupported(generated: GeneratedState, chance: Random) -> str:
    """Add a value that cannot be saved and return its name."""
    bad = [
        torch.zeros(4, dtype=torch.uint8).view(chance.choice([torch.uint3, torch.int1])),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        nn.UninitializedParameter(),
        StatefulObject({}),
    ]
    generated.kept.state["bad"] = chance.choice(bad)
    return "kept.bad"


def save(
    tracked: TrackedState, ranks: ProcessGroup, archive: CheckpointRepository, seed: int
) -> AsyncWriter:
    """Save a checkpoint; rank 0 writes last, so that it need not wait."""
    archive.tokens.claim(1, "a", LATER_S)
    writer = AsyncWriter(
        archive,
        WriterIdentity(ranks.rank, ranks.world_size, 1, "00000001"),
        Reporter(None),
        keep=None,
    )
    snapshot = stage(seed + 1, SavePlanner(tracked, ranks), {}, StagingBuffer())
    for is_turn in (ranks.rank > 0, ranks.rank == 0):
        if is_turn:
            writer.save(snapshot)
            writer.wait(60)
        ranks.all_reduce_max([0.0])
    return writer


def check_model(seed: int) -> None:
    """Create, save and resume one model on all of its ranks."""
    world_size = seed % 3 + 1
    rendezvous, store = ThreadRendezvous(world_size), MemoryStore()

    def run_rank(rank: int) -> None:
        with ExitStack() as failing:
            failing.callback(
                rendezvous.barrier.abort
            )  # Otherwise the other ranks wait for this one.
            _check_model(
                seed, ThreadGroup(rank, world_size, rendezvous), CheckpointRepository(store)
            )
            failing.pop_all()

    with ThreadPoolExecutor(world_size) as threads:
        ends = [threads.submit(run_rank, rank) for rank in range(world_size)]
    # The error of the rank that failed, not of the ranks that waited for it.
    flaws = [error for end in ends if (error := end.exception())]
    for flaw in sorted(flaws, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise flaw


def _check_model(seed: int, ranks: ProcessGroup, archive: CheckpointRepository) -> None:
    chance = Random(-seed)
    outcomes = ["sound"] * 4 + ["bad", "differs", "comes to differ", "comes apart"]
    outcome = chance.choice(outcomes)
    is_odd = ranks.rank == ranks.world_size - 1
    generated = GeneratedState(seed, seed, ranks)
    if (ranks.world_size == 1 and outcome != "bad") or (
        outcome == "comes apart" and not generated.is_divided
    ):
        outcome = "sound"
    other = generated if is_odd else GeneratedState(seed, seed, ranks)
    if outcome == "bad":
        assert is_refused(generated, ranks, add_unsupported(generated, chance)), (
            f"seed {seed} held what is bad"
        )
        return
    if outcome == "differs":
        name = change(other, chance)
        assert is_refused(generated, ranks, name), f"seed {seed}: {name} differs"
        return
    check_consistency(generated.tracked, ranks)
    name = ""
    if outcome == "comes to differ":
        name = change(other, chance)
    elif outcome == "comes apart":
        name = part(other)
    known = generated.everything()
    writer = save(generated.tracked, ranks, archive, seed)
    if name:
        assert ranks.all_reduce_max([float(writer.is_inconsistent or bool(writer.divergence))])[
            0
        ], f"seed {seed}: {name}"
        result = ranks.first_message(writer.divergence) or first_difference(ranks, writer.statement)
        assert result.startswith(name), f"seed {seed}: {result}"
        assert not archive.names(LATER_S)
        return
    fresh = GeneratedState(seed, seed + 10**6, ranks)
    archive.tokens.claim(2, "b", LATER_S)
    restored = restore(archive, ranks, fresh.tracked, 2, LATER_S)
    assert restored.name, f"seed {seed} was not saved: {writer.failure_reason}"
    assert fresh.everything() == known, f"seed {seed} is not as it was on rank {ranks.rank}"
