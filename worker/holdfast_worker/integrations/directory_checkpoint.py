"""A folder that a framework fills with its checkpoint, kept as one thing: its files, byte for byte."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast_worker.checkpoint.collective import fail_together
from holdfast_worker.checkpoint.stateful import OfFirst
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.storage.base import StoreError

FETCHED_BYTES: Final = 16 * 2**20
"""What a rank may bring of files that the first node does not see, such as the states of its random generators. More makes
the training stand still for them, as they go through the votes; less refuses the states of nodes with many GPUs."""


class DirectoryCheckpoint(OfFirst):
    """What of a framework's checkpoint goes into ours. The first rank holds it, and writes it.

    The files are mapped, and not read before they are copied: the folder may be removed at once, but not be written to again.
    """

    def __init__(self, ranks: ProcessGroup, local_rank: int, root: Path) -> None:
        """`root`: below which a folder that comes from the store is put, on each node."""
        self._ranks = ranks
        self._local_rank = local_rank
        self._root = root
        self._files: dict[str, Tensor] = {}
        self.step = 0
        """Of the checkpoint in it; 0: there is none."""
        self.restored: Path | None = None
        """Where one that came from the store was put; None: none came."""

    def pack(self, path: Path, step: int) -> None:
        """Hold what lies in `path` now. All ranks call it when they have written what is theirs.

        Raises:
            StoreError: it cannot be read, or other nodes have too much that the first one does not see; the same on all ranks.
        """
        files: dict[str, Tensor] = {}
        self._ranks.all_reduce_max([0.0])  # Until all have written.
        with fail_together(self._ranks):
            if self._ranks.rank == 0:
                files = {name: _map(path / name) for name in _names(path)}
        known = set(json.loads(self._ranks.broadcast(json.dumps(sorted(files)))))
        for source in range(1, self._ranks.world_size):
            brought = self._bring(path, known, source)
            known |= brought.keys()
            if self._ranks.rank == 0:
                files |= {name: _tensor(data) for name, data in brought.items()}
        self._files, self.step = files, step

    def state_dict(self) -> dict[str, Any]:
        """The step and the files."""
        return {"step": self.step, "files": dict(self._files)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the files below the root, once on each node.

        Raises:
            StoreError: a node cannot write them; the same on all ranks.
        """
        step = int(state["step"])
        path = self._root / f"checkpoint-{step}"
        with fail_together(self._ranks):
            if self._local_rank == 0:
                _write(path, state["files"], f".{self._ranks.rank}")
        # `together` has waited for all: from here on every rank finds them.
        self.restored = path

    def _bring(self, path: Path, known: set[str], source: int) -> dict[str, bytes]:
        """What one rank finds in its folder and nobody before it did, on all ranks."""
        text = ""
        with fail_together(self._ranks):
            if self._ranks.rank == source:
                text = _spell(path, sorted(set(_names(path)) - known), source)
        told = json.loads(self._ranks.broadcast(text, source) or "{}")
        return {name: base64.b64decode(data) for name, data in told.items()}


def _spell(path: Path, names: list[str], rank: int) -> str:
    """Files as text; empty if there are none."""
    try:
        size = sum((path / name).stat().st_size for name in names)
        if size > FETCHED_BYTES:
            raise StoreError(
                f"rank {rank} has {size} bytes of the checkpoint in {path}, and the first node does not see them: "
                "let the framework gather the state on the first rank, or give it a folder that all nodes share"
            )
        found = {name: base64.b64encode((path / name).read_bytes()).decode() for name in names}
    except OSError as error:
        raise StoreError(f"rank {rank} cannot read {path}: {error}") from error
    return json.dumps(found) if found else ""


def _names(path: Path) -> Iterator[str]:
    """The files below a folder, by their paths from there."""
    return (p.relative_to(path).as_posix() for p in sorted(path.rglob("*")) if p.is_file())


def _map(file: Path) -> Tensor:
    """The bytes of a file, which are read when they are needed."""
    try:
        size = file.stat().st_size
        if not size:  # Nothing cannot be mapped.
            return torch.empty(0, dtype=torch.uint8)
        return torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error


def _tensor(data: bytes) -> Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )


def _write(path: Path, files: Mapping[str, Tensor], ending: str) -> None:
    """Every file whole or not at all, as several nodes may write into a folder that they share."""
    try:
        for name, content in files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(file.name + ending)
            draft.write_bytes(content.numpy().tobytes())
            draft.replace(file)
    except OSError as error:
        raise StoreError(f"the checkpoint cannot be put into {path}: {error}") from error
