"""`holdfast-worker demo`: programs of a few lines that show what ranks are and do, on any machine, before anything is trained.

What all-reduce does, without torch and without a network: processes post their vectors in shared memory, wait for each
other, and take the mean. Standard library only, so that it runs wherever Python does.

`holdfast-worker demo`: its command line.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import MutableSequence, Sequence
from multiprocessing.synchronize import Barrier
from typing import Final

from holdfast_worker.console import log_info, print_line
from holdfast_worker.protocol.environment import Exit

WIDTH: Final = 4
"""Numbers in a vector."""
PATIENCE_S: Final = 60.0
"""With a process that does not come. Longer has a person wait for nothing, shorter fails on a busy machine."""


def simulate(workers: int) -> bool:
    """Say what all workers have before and after; whether they agree with the mean."""
    means = exchange(workers)
    reference = _mean([_own(rank) for rank in range(workers)])
    agree = all(mean == reference for mean in means)
    print_line(f"world_size (K) : {workers}")
    for rank, mean in enumerate(means):
        print_line(f"rank {rank}: local before = {_own(rank)} -> after mean = {mean}")
    print_line(f"reference mean : {reference}")
    print_line(f"all workers agree : {agree}")
    return agree


def exchange(workers: int) -> list[list[float]]:
    """The mean that each worker found, all in processes of their own."""
    spawn = multiprocessing.get_context("spawn")
    network, means = (spawn.RawArray("d", workers * WIDTH) for _ in range(2))
    posted = spawn.Barrier(workers)
    crew = [
        spawn.Process(target=_work, args=(rank, network, means, posted)) for rank in range(workers)
    ]
    for process in crew:
        process.start()
    for process in crew:
        process.join()
    return [means[rank * WIDTH : (rank + 1) * WIDTH] for rank in range(workers)]


def _work(
    rank: int, network: MutableSequence[float], means: MutableSequence[float], posted: Barrier
) -> None:
    """What every worker does: it knows its own vector alone until all are posted."""
    network[rank * WIDTH : (rank + 1) * WIDTH] = _own(rank)
    posted.wait(PATIENCE_S)
    vectors = [network[at : at + WIDTH] for at in range(0, len(network), WIDTH)]
    means[rank * WIDTH : (rank + 1) * WIDTH] = _mean(vectors)


def _own(rank: int) -> list[float]:
    return [rank + 1.0] * WIDTH


def _mean(vectors: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


USUAL_RANKS: Final = 4
MOST_RANKS: Final = 256
"""More have a slip of the pen fill this machine with processes, fewer refuse what a large server can show."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    commands = parser.add_subparsers(required=True, metavar="DEMO")
    for name, text in (
        ("hello", "every rank says who it is, and what its environment tells"),
        ("allreduce", "every rank has a vector of its own, and ends with the mean of all"),
        ("simulate", "the same by processes without torch, on any machine"),
    ):
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("-n", type=_count, default=USUAL_RANKS, metavar="N", help=f"ranks to start; default: {USUAL_RANKS}")  # fmt: skip
        made.set_defaults(do=_show, demo=name)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks: write 1 to {MOST_RANKS}")
    return int(text)


def _show(asked: argparse.Namespace) -> int:
    """The exit code of a demo. What it takes is imported here: one of them takes nothing."""
    if asked.demo == "simulate":
        return Exit.DONE if simulate(asked.n) else Exit.FAILED
    from holdfast_worker.cli.torch_demos import allreduce, hello  # noqa: PLC0415 - torch, which takes seconds

    try:
        (hello if asked.demo == "hello" else allreduce)(asked.n)
    except ValueError as error:
        log_info(str(error))
        return Exit.USAGE
    return Exit.DONE
