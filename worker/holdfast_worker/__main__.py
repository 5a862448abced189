"""Run a training script on this node of a job, and inspect checkpoints, ranks and machines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

Describe: TypeAlias = Callable[[argparse.ArgumentParser], None]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line of `holdfast-worker`.

    Raises:
        SystemExit: always, with the exit code of the command.
    """
    arguments = sys.argv[1:] if argv is None else [*argv]
    options = parser(arguments[:1]).parse_args(arguments)
    sys.exit(options.do(options))


def parser(named: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with all commands; only the `named` ones get their options.

    The options of some commands import torch, which takes seconds that other commands save.
    """
    top = argparse.ArgumentParser(prog="holdfast-worker", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, (text, describe) in COMMANDS.items():
        made = commands.add_parser(name, help=text, description=text)
        if name in named:
            describe(made)
    return top


def _run(made: argparse.ArgumentParser) -> None:
    from holdfast_worker.node.launch import launch  # noqa: PLC0415 - see parser()

    _add_ranks_option(made, "ranks per node; 4,2 for different nodes; default: one per GPU, or one")
    made.add_argument(
        "--debug", action="store_true", help="run two ranks with debug logs of their collectives"
    )
    made.add_argument("script", metavar="SCRIPT")
    made.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    made.set_defaults(
        do=lambda options: launch(
            [options.script, *options.args], options.nproc_per_node, debug=options.debug
        )
    )


def _ranks(made: argparse.ArgumentParser) -> None:
    from holdfast_worker.topology.nodes import print_layout  # noqa: PLC0415 - see parser()

    made.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="number of nodes; default: one per number in --nproc-per-node",
    )
    _add_ranks_option(made, "ranks per node; 4,2 for different nodes; default: 1", (1,))
    made.set_defaults(do=lambda options: print_layout(options.nproc_per_node, options.nodes))


def _add_ranks_option(
    made: argparse.ArgumentParser, text: str, default: tuple[int, ...] | None = None
) -> None:
    made.add_argument("--nproc-per-node", type=_counts, metavar="N", help=text, default=default)


def _counts(text: str) -> tuple[int, ...]:
    from holdfast_worker.topology.nodes import parse_counts  # noqa: PLC0415 - see parser()

    try:
        return parse_counts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _checkpoints(made: argparse.ArgumentParser) -> None:
    from holdfast_worker.cli import checkpoints  # noqa: PLC0415 - see parser()

    checkpoints.add_to(made)


def _demo(made: argparse.ArgumentParser) -> None:
    from holdfast_worker.cli import demos  # noqa: PLC0415 - see parser()

    demos.add_to(made)


def _doctor(made: argparse.ArgumentParser) -> None:
    from holdfast_worker.cli import doctor  # noqa: PLC0415 - see parser()

    doctor.add_to(made)


def _audit(made: argparse.ArgumentParser) -> None:
    from holdfast_worker.cli import nccl_audit  # noqa: PLC0415 - see parser()

    nccl_audit.add_to(made)


COMMANDS: Final[Mapping[str, tuple[str, Describe]]] = {
    "run": ("run a script under torchrun, with preemption handling and reports", _run),
    "ranks": ("show which rank runs on which node", _ranks),
    "checkpoints": ("list, verify and export the checkpoints in a store", _checkpoints),
    "audit": ("show which transports NCCL uses, from its logs", _audit),
    "doctor": ("show the torch, CUDA, backends and GPUs of this machine", _doctor),
    "demo": ("demonstrate ranks and all-reduce on this machine", _demo),
}


if __name__ == "__main__":
    main()
