"""`holdfast-worker demo`: small programs that demonstrate ranks and all-reduce.

The simulation works without torch and a network. Its processes write vectors to shared memory, wait at a barrier, and
compute the mean. Standard library only, so that it runs wherever Python does.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import MutableSequence, Sequence
from multiprocessing.synchronize import Barrier
from typing import Final

from holdfast_worker.console import log_info, print_line
from holdfast_worker.protocol.environment import Exit

VECTOR_SIZE: Final = 4
"""Numbers in a vector."""
WORKER_TIMEOUT_S: Final = 60.0
"""Timeout for a process that does not reach the barrier.
A lower value fails on a busy machine; a higher value delays the error."""


def simulate(workers: int) -> bool:
    """Print each worker's vector before and after; True if all have the mean."""
    means = exchange(workers)
    reference = _mean([_own_vector(rank) for rank in range(workers)])
    agree = all(mean == reference for mean in means)
    print_line(f"world_size (K) : {workers}")
    for rank, mean in enumerate(means):
        print_line(f"rank {rank}: local before = {_own_vector(rank)} -> after mean = {mean}")
    print_line(f"reference mean : {reference}")
    print_line(f"all workers agree : {agree}")
    return agree


def exchange(workers: int) -> list[list[float]]:
    """The mean that each worker process has computed."""
    spawn = multiprocessing.get_context("spawn")
    network, means = (spawn.RawArray("d", workers * VECTOR_SIZE) for _ in range(2))
    posted = spawn.Barrier(workers)
    processes = [
        spawn.Process(target=_work, args=(rank, network, means, posted)) for rank in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [means[rank * VECTOR_SIZE : (rank + 1) * VECTOR_SIZE] for rank in range(workers)]


def _work(
    rank: int, network: MutableSequence[float], means: MutableSequence[float], posted: Barrier
) -> None:
    """Write the own vector, wait for all others, and compute the mean."""
    network[rank * VECTOR_SIZE : (rank + 1) * VECTOR_SIZE] = _own_vector(rank)
    posted.wait(WORKER_TIMEOUT_S)
    vectors = [network[at : at + VECTOR_SIZE] for at in range(0, len(network), VECTOR_SIZE)]
    means[rank * VECTOR_SIZE : (rank + 1) * VECTOR_SIZE] = _mean(vectors)


def _own_vector(rank: int) -> list[float]:
    return [rank + 1.0] * VECTOR_SIZE


def _mean(vectors: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


DEFAULT_RANKS: Final = 4
MAX_RANKS: Final = 256
"""Maximum number of processes of a demo.
A lower value refuses demos that a large server can run; a higher value lets a typing error fill the machine with processes."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and options of `holdfast-worker demo`."""
    commands = parser.add_subparsers(required=True, metavar="DEMO")
    for name, text in (
        ("hello", "print rank and environment variables on each rank"),
        ("allreduce", "compute the mean of one vector per rank with torch.distributed"),
        ("simulate", "simulate all-reduce with processes, without torch"),
    ):
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("-n", type=_count, default=DEFAULT_RANKS, metavar="N", help=f"ranks to start; default: {DEFAULT_RANKS}")  # fmt: skip
        made.set_defaults(do=_show, demo=name)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid number of ranks: write 1 to {MAX_RANKS}"
        )
    return int(text)


def _show(options: argparse.Namespace) -> int:
    """Run a demo and return its exit code.

    torch is imported here, as `simulate` works without it.
    """
    if options.demo == "simulate":
        return Exit.DONE if simulate(options.n) else Exit.FAILED
    from holdfast_worker.cli.torch_demos import allreduce, hello  # noqa: PLC0415 - torch takes seconds to load

    try:
        (hello if options.demo == "hello" else allreduce)(options.n)
    except ValueError as error:
        log_info(str(error))
        return Exit.USAGE
    return Exit.DONE
