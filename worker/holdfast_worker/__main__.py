"""`holdfast-worker`: a script on this node's share of the job, a look into its checkpoints, and what ranks are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

Describe: TypeAlias = Callable[[argparse.ArgumentParser], None]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line.

    Raises:
        SystemExit: always, with what the script meant to say.
    """
    words = sys.argv[1:] if argv is None else [*argv]
    asked = parser(words[:1]).parse_args(words)
    sys.exit(asked.do(asked))


def parser(named: Sequence[str]) -> argparse.ArgumentParser:
    """The command line with all commands, of which those that are `named` are described in full.

    To look into checkpoints takes torch, which takes seconds to load. Who runs a script on a node does not pay for that.
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

    _take_counts(made, "or 4,2 for nodes that are not alike; default: one per GPU, or one")
    made.add_argument(
        "--debug", action="store_true", help="two ranks that say what goes on between them"
    )
    made.add_argument("script", metavar="SCRIPT")
    made.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    made.set_defaults(
        do=lambda asked: launch(
            [asked.script, *asked.args], asked.nproc_per_node, debug=asked.debug
        )
    )


def _ranks(made: argparse.ArgumentParser) -> None:
    from holdfast_worker.topology.nodes import show  # noqa: PLC0415 - see parser()

    made.add_argument(
        "--nodes", type=int, metavar="N", help="default: as many as have a number below"
    )
    _take_counts(made, "or 4,2 for nodes that are not alike; default: 1", (1,))
    made.set_defaults(do=lambda asked: show(asked.nproc_per_node, asked.nodes))


def _take_counts(
    made: argparse.ArgumentParser, text: str, default: tuple[int, ...] | None = None
) -> None:
    made.add_argument("--nproc-per-node", type=_counts, metavar="N", help=text, default=default)


def _counts(text: str) -> tuple[int, ...]:
    from holdfast_worker.topology.nodes import counts  # noqa: PLC0415 - see parser()

    try:
        return counts(text)
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
    "run": ("run a script under torchrun, leave on notice, report", _run),
    "ranks": ("show which rank is on which node", _ranks),
    "checkpoints": ("look into a checkpoint store", _checkpoints),
    "audit": ("say how ranks talk, from what NCCL printed", _audit),
    "doctor": ("say what this machine trains with", _doctor),
    "demo": ("show what ranks are and do, on this machine", _demo),
}


if __name__ == "__main__":
    main()
