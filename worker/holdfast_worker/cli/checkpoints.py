"""`holdfast-worker checkpoints`: list, verify and export the checkpoints in a store."""

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

from holdfast_worker.checkpoint.collective import read_checkpoint
from holdfast_worker.checkpoint.metadata import (
    CommitMetadata,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
)
from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.clock import now
from holdfast_worker.config import environment
from holdfast_worker.console import log_info, print_line
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.storage import open_job_url
from holdfast_worker.storage.base import StoreError

STORE_TIMEOUT_S: Final = 60.0
"""Timeout for a store, while a person waits.
A lower value fails on a slow store; a higher value delays the error message."""


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
    """Metrics that the script had logged; empty if the commit cannot be read."""
    flaw: str | None
    """Why a resume skips it; None if no defect is known."""


def list_checkpoints(repository: CheckpointRepository) -> list[CheckpointListing]:
    """All committed checkpoints, newest first, without reading their data."""
    lineage = repository.tokens.lineage(deadline_s())
    known = repository.quarantine.reasons(deadline_s())
    listed: list[CheckpointListing] = []
    for name in repository.names(deadline_s()):
        cut = lineage.superseding_start(name)
        flaw = (
            f"superseded: epoch {cut.epoch} resumed from step {cut.step}"
            if cut
            else known.get(name)
        )
        commit: CommitMetadata | None = None
        try:
            commit = repository.read_commit(name, deadline_s())
        except (CorruptCheckpoint, IncompatibleCheckpoint) as error:
            flaw = str(error)
        listed.append(_listed(name, commit, flaw))
    return listed


def verify(repository: CheckpointRepository, name: CheckpointName) -> str | None:
    """Read every byte of a checkpoint and return its defect; None if it is intact."""
    try:
        read_checkpoint(
            repository, ProcessGroup.single(), DestinationTensors.empty(), name, deadline_s()
        )
    except (CorruptCheckpoint, IncompatibleCheckpoint) as error:
        return str(error)
    if name in repository.quarantine.reasons(deadline_s()):
        # It has been repaired, so that a resume can use it again.
        repository.quarantine.clear(name, deadline_s())
    return None


def export(repository: CheckpointRepository, name: CheckpointName, to: Path, form: str) -> None:
    """Write a checkpoint to `to` in a format of `FORMS`.

    Raises:
        CorruptCheckpoint: it is corrupt.
        IncompatibleCheckpoint: this version cannot read it.
        OSError: the destination cannot be written.
    """
    contents = read_checkpoint(
        repository, ProcessGroup.single(), DestinationTensors.empty(), name, deadline_s()
    )
    FORMS[form](name.step, contents.tracked, to)


def _as_torch(step: int, tracked: Mapping[str, Any], to: Path) -> None:
    torch.save({"step": step, **tracked}, to)


def _as_safetensors(step: int, tracked: Mapping[str, Any], to: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415 - an optional package, for this format only

    tensors = _tensors(tracked)
    # The format requires separate memory for each name: tied weights are written once for each of their names.
    save_file(
        {name: t.clone().contiguous() for name, t in tensors.items()}, to, {"step": f"{step}"}
    )


def _as_dcp(step: int, tracked: Mapping[str, Any], to: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - see above

    with warnings.catch_warnings():
        # A single process is intended.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save({"step": step, **tracked}, checkpoint_id=to, no_dist=True)


FORMS: Final[Mapping[str, Callable[[int, Mapping[str, Any], Path], None]]] = {
    "torch": _as_torch,
    "safetensors": _as_safetensors,
    "dcp": _as_dcp,
}
"""Export formats: a file for `torch.load`, safetensors, or a directory for torch's
distributed checkpoint."""


def _tensors(tracked: Mapping[str, Any]) -> dict[str, Tensor]:
    """All tensors of a tree, by path."""
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
    """The listing as JSON."""
    return json.dumps([asdict(item) for item in listed], indent=1)


def as_table(listed: list[CheckpointListing], now: datetime) -> str:
    """The listing as a table."""
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
    """The deadline of a store operation that starts now."""
    return time.monotonic() + STORE_TIMEOUT_S


STORE_HELP: Final = "s3://BUCKET/PREFIX/JOB (also gs:// and az://) or file:///DIRECTORY/JOB: the store of the job file and the job id"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and options of `holdfast-worker checkpoints`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, text: str, do: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("store", metavar="STORE", help=STORE_HELP)
        made.set_defaults(do=lambda options: _run_and_report(do, options))
        return made

    listing = command("ls", "list checkpoints, newest first", _list)
    listing.add_argument("--json", action="store_true", help="print JSON")
    checking = command("verify", "read every byte; exit with 1 if a checkpoint is corrupt", _verify)
    checking.add_argument("--step", type=int, metavar="N", help="verify this step only")
    exporting = command("export", "write a checkpoint in a common format", _export)
    exporting.add_argument(
        "to", metavar="FILE", type=Path, help="destination file; a directory with --form dcp"
    )
    exporting.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="step to export; default: the newest intact checkpoint",
    )
    exporting.add_argument(
        "--form", choices=tuple(FORMS), default="torch", help="output format; default: torch"
    )


def _run_and_report(do: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command and return its exit code; errors are logged in one line."""
    try:
        return do(options)
    except StoreError as error:
        log_info(f"the store {options.store} cannot be read: {error}")
        return Exit.UNUSABLE_STORE
    except OSError as error:
        log_info(f"{error.strerror}: {error.filename}")
        return Exit.FAILED


def _list(options: argparse.Namespace) -> int:
    listed = list_checkpoints(_open_repository(options))
    if options.json or listed:
        print_line(as_json(listed) if options.json else as_table(listed, now()))
    else:
        log_info(f"the store {options.store} has no checkpoints")
    return Exit.DONE


def _verify(options: argparse.Namespace) -> int:
    repository = _open_repository(options)
    chosen = _select(repository, options.step)
    flaws = 0
    for number, name in enumerate(chosen, 1):
        flaw = verify(repository, name)
        flaws += flaw is not None
        print_line(f"[{number}/{len(chosen)}] {name}: {flaw or 'intact'}")
    if not chosen:
        log_info(_no_checkpoint_message(options))
    return Exit.FAILED if flaws or not chosen else Exit.DONE


def _export(options: argparse.Namespace) -> int:
    repository = _open_repository(options)
    for name in _select(repository, options.step):
        try:
            export(repository, name, options.to, options.form)
        except CorruptCheckpoint as damage:
            log_info(f"skipping {name}: {damage}")
            continue
        log_info(f"exported {name} to {options.to}")
        return Exit.DONE
    log_info(_no_checkpoint_message(options))
    return Exit.FAILED


def _open_repository(options: argparse.Namespace) -> CheckpointRepository:
    return CheckpointRepository(open_job_url(options.store, environment()))


def _select(repository: CheckpointRepository, step: int | None) -> list[CheckpointName]:
    """Checkpoints on the job's lineage, newest first."""
    until_s = deadline_s()
    lineage = repository.tokens.lineage(until_s)
    names = [name for name in repository.names(until_s) if not lineage.superseding_start(name)]
    return [name for name in names if step is None or name.step == step]


def _no_checkpoint_message(options: argparse.Namespace) -> str:
    of_step = "" if options.step is None else f" of step {options.step}"
    return f"the store {options.store} has no intact checkpoint{of_step}"
