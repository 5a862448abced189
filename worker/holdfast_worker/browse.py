"""`holdfast-worker checkpoints`: the command line of looking into a checkpoint store."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Damaged
from holdfast_worker.console import say, tell
from holdfast_worker.inspection import (
    FORMS,
    as_json,
    as_table,
    deadline_s,
    export,
    list_checkpoints,
    verify,
)
from holdfast_worker.moment import now
from holdfast_worker.names import Name
from holdfast_worker.stores import StoreError, open_place
from holdfast_worker.wire import Exit

STORE: Final = (
    "s3://BUCKET/PREFIX/JOB or file:///FOLDER/JOB: the store of the job file, and the job"
)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, text: str, do: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("store", metavar="STORE", help=STORE)
        made.set_defaults(do=lambda asked: _minded(do, asked))
        return made

    listing = command("ls", "what is there, newest first", _list)
    listing.add_argument("--json", action="store_true", help="print JSON")
    checking = command(
        "verify", "read every byte; ends with 1 if a checkpoint is not sound", _verify
    )
    checking.add_argument("--step", type=int, metavar="N", help="that of this step alone")
    leaving = command("export", "write a checkpoint as others read it", _export)
    leaving.add_argument("to", metavar="FILE", type=Path, help="a file; with --form dcp a folder")
    leaving.add_argument("--step", type=int, metavar="N", help="default: the newest that is sound")
    leaving.add_argument("--form", choices=tuple(FORMS), default="torch", help="default: torch")


def _minded(do: Callable[[argparse.Namespace], int], asked: argparse.Namespace) -> int:
    """The exit code; what goes wrong is said in a sentence."""
    try:
        return do(asked)
    except StoreError as error:
        tell(f"{asked.store} cannot be read: {error}")
        return Exit.UNUSABLE_STORE
    except OSError as error:
        tell(f"{error.strerror}: {error.filename}")
        return Exit.FAILED


def _list(asked: argparse.Namespace) -> int:
    listed = list_checkpoints(_archive(asked))
    if asked.json or listed:
        say(as_json(listed) if asked.json else as_table(listed, now()))
    else:
        tell(f"{asked.store} has no checkpoint")
    return Exit.DONE


def _verify(asked: argparse.Namespace) -> int:
    archive = _archive(asked)
    chosen = _chosen(archive, asked.step)
    flaws = 0
    for number, name in enumerate(chosen, 1):
        flaw = verify(archive, name)
        flaws += flaw is not None
        say(f"[{number}/{len(chosen)}] {name}: {flaw or 'sound'}")
    if not chosen:
        tell(_nothing(asked))
    return Exit.FAILED if flaws or not chosen else Exit.DONE


def _export(asked: argparse.Namespace) -> int:
    archive = _archive(asked)
    for name in _chosen(archive, asked.step):
        try:
            export(archive, name, asked.to, asked.form)
        except Damaged as damage:
            tell(f"{name} is passed over: {damage}")
            continue
        tell(f"{name} is in {asked.to}")
        return Exit.DONE
    tell(_nothing(asked))
    return Exit.FAILED


def _archive(asked: argparse.Namespace) -> Archive:
    return Archive(open_place(asked.store))


def _chosen(archive: Archive, step: int | None) -> list[Name]:
    """Checkpoints that lead to where the job is, newest first."""
    until_s = deadline_s()
    lineage = archive.claims.lineage(until_s)
    names = [name for name in archive.names(until_s) if not lineage.cut(name)]
    return [name for name in names if step is None or name.step == step]


def _nothing(asked: argparse.Namespace) -> str:
    of_step = "" if asked.step is None else f" of step {asked.step}"
    return f"{asked.store} has no sound checkpoint{of_step}"
