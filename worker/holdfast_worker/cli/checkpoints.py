"""Looking into a checkpoint store by hand: what is there, whether it is sound, and out of it into the formats of others.

`holdfast-worker checkpoints`: the command line of looking into a checkpoint store.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast_worker.checkpoint.collective import read
from holdfast_worker.checkpoint.metadata import CommitMetadata, CorruptCheckpoint, Foreign
from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.clock import now
from holdfast_worker.console import log_info, print_line
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.storage import open_place
from holdfast_worker.storage.base import StoreError

PATIENCE_S: Final = 60.0
"""With a store that does not answer a person who waits."""


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """A checkpoint as its commit describes it."""

    checkpoint: str
    step: int
    epoch: int
    snapshot_at: str | None
    """None if the commit cannot be read."""
    size_bytes: int | None
    world_size: int | None
    weights_sha256: str | None
    metrics: Mapping[str, MetricValue]
    """What the script had logged; empty if the commit cannot be read."""
    flaw: str | None
    """Why a resume passes it over; None if nothing is known against it."""


def list_checkpoints(archive: CheckpointRepository) -> list[CheckpointListing]:
    """All that were committed, newest first. Their bytes are not read."""
    lineage = archive.claims.lineage(deadline_s())
    known = archive.flaws.known(deadline_s())
    listed: list[CheckpointListing] = []
    for name in archive.names(deadline_s()):
        cut = lineage.cut(name)
        flaw = f"epoch {cut.epoch} went on from step {cut.step}" if cut else known.get(name)
        commit: CommitMetadata | None = None
        try:
            commit = archive.read_commit(name, deadline_s())
        except (CorruptCheckpoint, Foreign) as error:
            flaw = str(error)
        listed.append(_listed(name, commit, flaw))
    return listed


def verify(archive: CheckpointRepository, name: CheckpointName) -> str | None:
    """What is wrong with a checkpoint, of which every byte is read; None if nothing is."""
    try:
        read(archive, ProcessGroup.one(), DestinationTensors.none(), name, deadline_s())
    except (CorruptCheckpoint, Foreign) as error:
        return str(error)
    if name in archive.flaws.known(deadline_s()):
        # Somebody has mended it: a resume need not pass it over any more.
        archive.flaws.clear(name, deadline_s())
    return None


def export(archive: CheckpointRepository, name: CheckpointName, to: Path, form: str) -> None:
    """Write a checkpoint to `to` as others read it.

    Raises:
        Damaged: it cannot be used.
        Foreign: this version cannot read it.
        OSError: it cannot be written there.
    """
    contents = read(archive, ProcessGroup.one(), DestinationTensors.none(), name, deadline_s())
    FORMS[form](name.step, contents.tracked, to)


def _as_torch(step: int, tracked: Mapping[str, Any], to: Path) -> None:
    torch.save({"step": step, **tracked}, to)


def _as_safetensors(step: int, tracked: Mapping[str, Any], to: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415 - only who asks for it needs it

    tensors = _tensors(tracked)
    # One memory for each name, as the format wants it: tied weights are written as often as they have names.
    save_file(
        {name: t.clone().contiguous() for name, t in tensors.items()}, to, {"step": f"{step}"}
    )


def _as_dcp(step: int, tracked: Mapping[str, Any], to: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - see above

    with warnings.catch_warnings():
        # That there is one process is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save({"step": step, **tracked}, checkpoint_id=to, no_dist=True)


FORMS: Final[Mapping[str, Callable[[int, Mapping[str, Any], Path], None]]] = {
    "torch": _as_torch,
    "safetensors": _as_safetensors,
    "dcp": _as_dcp,
}
"""A file for `torch.load`, one for safetensors, a folder for `torch.distributed.checkpoint`."""


def _tensors(tracked: Mapping[str, Any]) -> dict[str, Tensor]:
    """All tensors of a tree, by the path to each."""
    found: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            found[path] = value
        elif isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                walk(item, f"{path}.{i}")

    walk(tracked, "")
    return found


def _listed(
    name: CheckpointName, commit: CommitMetadata | None, flaw: str | None
) -> CheckpointListing:
    return CheckpointListing(
        checkpoint=str(name),
        step=name.step,
        epoch=name.epoch,
        snapshot_at=commit.snapshot_at if commit else None,
        size_bytes=commit.size_bytes if commit else None,
        world_size=commit.world_size if commit else None,
        weights_sha256=commit.weights_sha256 if commit else None,
        metrics=dict(commit.metrics) if commit else {},
        flaw=flaw,
    )


def as_json(listed: list[CheckpointListing]) -> str:
    """For programs."""
    return json.dumps([asdict(item) for item in listed], indent=1)


def as_table(listed: list[CheckpointListing], now: datetime) -> str:
    """For people."""
    rows = [("STEP", "AGE", "SIZE", "RANKS", "EPOCH", "STATE")]
    rows += [
        (
            f"{item.step}",
            _age(item.snapshot_at, now),
            f"{item.size_bytes / 1e6:.1f} MB" if item.size_bytes is not None else "?",
            f"{item.world_size or '?'}",
            f"{item.epoch}",
            item.flaw or "complete",
        )
        for item in listed
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _age(snapshot_at: str | None, now: datetime) -> str:
    if snapshot_at is None:
        return "?"
    seconds = (now - datetime.fromisoformat(snapshot_at)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def deadline_s() -> float:
    """When to give up on a store that does not answer."""
    return time.monotonic() + PATIENCE_S


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
        log_info(f"{asked.store} cannot be read: {error}")
        return Exit.UNUSABLE_STORE
    except OSError as error:
        log_info(f"{error.strerror}: {error.filename}")
        return Exit.FAILED


def _list(asked: argparse.Namespace) -> int:
    listed = list_checkpoints(_archive(asked))
    if asked.json or listed:
        print_line(as_json(listed) if asked.json else as_table(listed, now()))
    else:
        log_info(f"{asked.store} has no checkpoint")
    return Exit.DONE


def _verify(asked: argparse.Namespace) -> int:
    archive = _archive(asked)
    chosen = _chosen(archive, asked.step)
    flaws = 0
    for number, name in enumerate(chosen, 1):
        flaw = verify(archive, name)
        flaws += flaw is not None
        print_line(f"[{number}/{len(chosen)}] {name}: {flaw or 'sound'}")
    if not chosen:
        log_info(_nothing(asked))
    return Exit.FAILED if flaws or not chosen else Exit.DONE


def _export(asked: argparse.Namespace) -> int:
    archive = _archive(asked)
    for name in _chosen(archive, asked.step):
        try:
            export(archive, name, asked.to, asked.form)
        except CorruptCheckpoint as damage:
            log_info(f"{name} is passed over: {damage}")
            continue
        log_info(f"{name} is in {asked.to}")
        return Exit.DONE
    log_info(_nothing(asked))
    return Exit.FAILED


def _archive(asked: argparse.Namespace) -> CheckpointRepository:
    return CheckpointRepository(open_place(asked.store))


def _chosen(archive: CheckpointRepository, step: int | None) -> list[CheckpointName]:
    """Checkpoints that lead to where the job is, newest first."""
    until_s = deadline_s()
    lineage = archive.claims.lineage(until_s)
    names = [name for name in archive.names(until_s) if not lineage.cut(name)]
    return [name for name in names if step is None or name.step == step]


def _nothing(asked: argparse.Namespace) -> str:
    of_step = "" if asked.step is None else f" of step {asked.step}"
    return f"{asked.store} has no sound checkpoint{of_step}"
