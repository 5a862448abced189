"""A training script in which one process falls at a given moment within a step, once.

python lost_ranks.py TOTAL FOLDER [--fall RANK:STEP:MOMENT] [--error RANK:STEP] [--two-optimizers] [--shard] [--untracked]
    [--pause SECONDS] [--late RANK] [--settle] [--connected] [--hold STEP]... [--hold-update STEP]

Steps are slow only until a test has what it waits for, however long this takes. In step `--hold`, or before the loop for -1, ranks wait for
the file `released-STEP` or `released`; the latter also ends all pauses. A rank with a termination notice does not wait. With `--settle`, each step ends once what the rank saves or copies
is complete. With `--hold-update`, ranks are held in a step when their optimizer has
changed half of the parameters. With `--connected`, the rank fails only once the wrapper of node 0 is connected to all others: otherwise, all ranks restart.
"""

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from ddp import settle
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from holdfast_worker.distributed.sharding import full_tensor
from holdfast_worker.preemption.notice import NOTICE
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Points with new noise at each read, from the generator that the training also uses."""

    def __init__(self) -> None:
        self.points = torch.linspace(-1, 1, 240 * 8).reshape(240, 8)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        point = self.points[i] + 0.1 * torch.randn(8)
        return point, point.sum().sin()


class Fall:
    """Kills a rank at one moment of one step, in its first process."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        falling, step, self._moment = args.fall.split(":")
        self._step = int(step) if int(falling) == rank else -1
        self._flag = args.folder / "has-fallen"
        self._args = args

    def at(self, step: int, moment: str) -> None:
        """Fall if the moment is there."""
        if (step, moment) == (self._step, self._moment) and not self._flag.exists():
            wait_for_connections(self._args)
            self._flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def wait_until(condition: Callable[[], bool], sentence: str) -> None:
    """Wait for five minutes at most."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, sentence
        time.sleep(0.02)


def wait_for_connections(args: argparse.Namespace) -> None:
    """Wait until the wrapper of node 0 is connected to all others, if a test asks for it."""
    node = args.folder.glob if args.connected else None
    wait_until(lambda: node is None or any(node("n0-*/connected")), "some nodes are not connected")


def hold(args: argparse.Namespace, rank: int, step: int) -> None:
    """Wait in a step until the test releases the ranks."""
    if step in args.hold:
        wait_for_release(args, rank, step)


def wait_for_release(args: argparse.Namespace, rank: int, step: int) -> None:
    """Wait until the test releases the ranks."""
    held = args.folder / f"held-{step}-{rank}"
    held.touch()
    files = (args.folder / f"released-{step}", args.folder / "released")
    wait_until(
        lambda: NOTICE.is_raised or any(file.exists() for file in files),
        f"step {step} was not released",
    )
    held.unlink()


class HeldAdamW(torch.optim.AdamW):
    """Holds the ranks in one step between the updates of two halves of the parameters."""

    def __init__(
        self, parameters: Iterator[nn.Parameter], args: argparse.Namespace, run: Run
    ) -> None:
        super().__init__(parameters)
        self._args, self._run = args, run

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch.optim overloads it
        """Update the parameters."""
        if self._run.step != self._args.hold_update:
            super().step(closure)
            return
        parameters = self.param_groups[0]["params"]
        gradients = [each.grad for each in parameters]
        for remainder in (0, 1):  # A parameter without a gradient is not updated.
            for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                parameter.grad = gradient if number % 2 == remainder else None
            super().step(closure)
            if remainder == 0:
                wait_for_release(self._args, self._run.rank, self._run.step)


def begin(args: argparse.Namespace, run: Run) -> None:
    """Wait before the loop."""
    time.sleep(args.wait)
    hold(args, run.rank, -1)


def end_step(args: argparse.Namespace, run: Run) -> None:
    """Pause, and wait for what a test wants to have happened by then."""
    end = time.monotonic() + args.pause
    while time.monotonic() < end and not (args.folder / "released").exists():
        time.sleep(min(args.pause, 0.05))
    if args.settle:
        settle(run)
    hold(args, run.rank, run.step)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("total", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fall", default="-1:-1:never")
    parser.add_argument("--error", default="-1:-1")
    parser.add_argument("--two-optimizers", action="store_true")
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--untracked", action="store_true")
    parser.add_argument("--no-room", action="store_true")
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--late", type=int, default=-1)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--settle", action="store_true")
    parser.add_argument("--connected", action="store_true")
    parser.add_argument("--hold-update", type=int, default=-1)
    parser.add_argument("--hold", type=int, action="append", default=[])
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    run = Run.start(deterministic=True)
    begin(args, run)
    fall = Fall(args, run.rank)
    data = Noisy()
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, run.world_size, run.rank))
    head = run.wrap(nn.Linear(8, 8)) if args.two_optimizers else nn.Identity()
    norm = nn.Identity() if args.shard else nn.BatchNorm1d(32)
    body = nn.Sequential(nn.Linear(8, 32), norm, nn.Dropout(0.2), nn.Linear(32, 1))
    model = run.wrap(body, shard=args.shard)
    optimizer = HeldAdamW(model.parameters(), args, run)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.total)
    tracked = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if args.two_optimizers:
        second = torch.optim.SGD(head.parameters(), lr=0.01)
        tracked |= {"head": head, "second": second}
    if not args.untracked:
        run.track(**tracked)
    with (
        (args.folder / f"losses-{run.rank}").open("a") as losses,
        (args.folder / f"processes-{run.rank}").open("a") as processes,
    ):
        for inputs, targets in run.steps(loader, total=args.total):
            step = run.step
            if args.error == f"{run.rank}:{step}":
                wait_for_connections(args)
                raise ValueError("an error")
            if args.no_room and "HOLDFAST_HOSTED_START" in os.environ:
                raise MemoryError("no room for two ranks")
            loss = (model(head(inputs)).squeeze(-1) - targets).square().mean()
            fall.at(step, "forward")
            loss.backward()
            fall.at(step, "backward")
            optimizer.step()
            fall.at(step, "step")
            optimizer.zero_grad()
            if args.two_optimizers:
                second.step()
                second.zero_grad()
                fall.at(step, "between")
                head(inputs).square().mean().backward()
                second.step()
                second.zero_grad()
            scheduler.step()
            losses.write(f"{step} {loss.item().hex()}\n")
            losses.flush()
            processes.write(f"{os.getpid()}\n")
            processes.flush()
            end_step(args, run)
            fall.at(step, "end")
    digest = state_dict_digest({n: full_tensor(t) for n, t in model.state_dict().items()})
    (args.folder / f"result-{run.rank}").write_text(digest)
    time.sleep(3 if args.late == run.rank else 0)


main()
