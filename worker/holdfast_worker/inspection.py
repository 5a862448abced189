"""Looking into a checkpoint store by hand: what is there, whether it is sound, and out of it into the formats of others."""

from __future__ import annotations

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

from holdfast_worker.archive import Archive
from holdfast_worker.checkpoint import Commit, Damaged, Foreign
from holdfast_worker.homes import Homes
from holdfast_worker.names import Name
from holdfast_worker.ranks import Ranks
from holdfast_worker.reading_together import read
from holdfast_worker.summary import Logged

PATIENCE_S: Final = 60.0
"""With a store that does not answer a person who waits."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint as its commit describes it."""

    checkpoint: str
    step: int
    epoch: int
    snapshot_at: str | None
    """None if the commit cannot be read."""
    size_bytes: int | None
    world_size: int | None
    weights_sha256: str | None
    metrics: Mapping[str, Logged]
    """What the script had logged; empty if the commit cannot be read."""
    flaw: str | None
    """Why a resume passes it over; None if nothing is known against it."""


def list_checkpoints(archive: Archive) -> list[Listed]:
    """All that were committed, newest first. Their bytes are not read."""
    lineage = archive.claims.lineage(deadline_s())
    known = archive.flaws.known(deadline_s())
    listed: list[Listed] = []
    for name in archive.names(deadline_s()):
        cut = lineage.cut(name)
        flaw = f"epoch {cut.epoch} went on from step {cut.step}" if cut else known.get(name)
        commit: Commit | None = None
        try:
            commit = archive.read_commit(name, deadline_s())
        except (Damaged, Foreign) as error:
            flaw = str(error)
        listed.append(_listed(name, commit, flaw))
    return listed


def verify(archive: Archive, name: Name) -> str | None:
    """What is wrong with a checkpoint, of which every byte is read; None if nothing is."""
    try:
        read(archive, Ranks.one(), Homes.none(), name, deadline_s())
    except (Damaged, Foreign) as error:
        return str(error)
    if name in archive.flaws.known(deadline_s()):
        # Somebody has mended it: a resume need not pass it over any more.
        archive.flaws.clear(name, deadline_s())
    return None


def export(archive: Archive, name: Name, to: Path, form: str) -> None:
    """Write a checkpoint to `to` as others read it.

    Raises:
        Damaged: it cannot be used.
        Foreign: this version cannot read it.
        OSError: it cannot be written there.
    """
    contents = read(archive, Ranks.one(), Homes.none(), name, deadline_s())
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


def _listed(name: Name, commit: Commit | None, flaw: str | None) -> Listed:
    return Listed(
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


def as_json(listed: list[Listed]) -> str:
    """For programs."""
    return json.dumps([asdict(item) for item in listed], indent=1)


def as_table(listed: list[Listed], now: datetime) -> str:
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
