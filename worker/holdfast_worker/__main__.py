"""`holdfast-worker`: a script on this node's share of the job, and a look into its checkpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from holdfast_worker import browse, doctor
from holdfast_worker.launch import launch


def main(argv: Sequence[str] | None = None) -> None:
    """The command line.

    Raises:
        SystemExit: always, with what the script meant to say.
    """
    parser = argparse.ArgumentParser(prog="holdfast-worker", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a script under torchrun, leave on notice, report")
    run.add_argument("--nproc-per-node", type=int, metavar="N", help="default: one per GPU, or one")
    run.add_argument("script", metavar="SCRIPT")
    run.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS")
    run.set_defaults(do=lambda asked: launch([asked.script, *asked.args], asked.nproc_per_node))
    browse.add_to(commands.add_parser("checkpoints", help="look into a checkpoint store"))
    doctor.add_to(commands.add_parser("doctor", help="say what this machine trains with"))
    asked = parser.parse_args(argv)
    sys.exit(asked.do(asked))


if __name__ == "__main__":
    main()
