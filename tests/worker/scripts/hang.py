"""A training script that hangs, for the tests of the watchdog.

python hang.py TOTAL [--rank R --step S --how HOW] [--other HOW]

At step S, rank R does HOW, and all other ranks do what `--other` says. Every step ends in a collective.
"""

import argparse
import os
import signal
import threading
from collections.abc import Iterator

import torch
from holdfast_worker import Run
from torch import distributed

PAUSE_S = 0.02


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def spin_around() -> None:
    while True:
        pass


def sleep_for_ever() -> None:
    """Sleep like a rank that waits for a GPU, which does not detect a closed connection."""
    threading.Event().wait()


def evaluate(run: Run) -> None:
    """Evaluate for longer than the stall limit of the tests."""
    for _ in range(90):
        run.beat()
        threading.Event().wait(0.1)


def nothing() -> None:
    pass


class Stream:
    """Batches; rank R never gets the S-th one."""

    def __init__(self, stuck_at: int) -> None:
        self.stuck_at = stuck_at

    def __iter__(self) -> Iterator[int]:
        for batch in range(10**9):
            if batch + 1 == self.stuck_at:
                sleep_for_ever()
            yield batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("total", type=int)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--step", type=int, default=10)
    parser.add_argument("--how", default="nothing")
    parser.add_argument("--other", default="nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = Run.start()
    actions = {
        "stop": stop,
        "die": die,
        "spin": spin_around,
        "sleep": sleep_for_ever,
        "evaluate": lambda: evaluate(run),
        "dawdle": lambda: threading.Event().wait(1.5),
        "load": nothing,
        "nothing": nothing,
    }
    how = args.how if run.rank == args.rank else args.other

    for _ in run.steps(Stream(args.step if how == "load" else -1), total=args.total):
        if run.step + 1 == args.step or how == "dawdle":
            actions[how]()
        if run.world_size > 1:
            distributed.all_reduce(torch.zeros(1))
        threading.Event().wait(PAUSE_S)


if __name__ == "__main__":
    main()
