"""`holdfast-worker demo`: its command line."""

from __future__ import annotations

import argparse
from typing import Final

from holdfast_worker.console import tell
from holdfast_worker.wire import Exit

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
        from holdfast_worker.demos.simulate import simulate  # noqa: PLC0415

        return Exit.DONE if simulate(asked.n) else Exit.FAILED
    from holdfast_worker.demos.allreduce import allreduce  # noqa: PLC0415 - torch, which takes seconds
    from holdfast_worker.demos.hello import hello  # noqa: PLC0415 - the same

    try:
        (hello if asked.demo == "hello" else allreduce)(asked.n)
    except ValueError as error:
        tell(str(error))
        return Exit.USAGE
    return Exit.DONE
