"""The checkpoint directory of a framework as one tracked state: its files, byte for byte."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from holdfast_worker.checkpoint.collective import fail_together
from holdfast_worker.checkpoint.stateful import RankZeroState
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.storage.base import StoreError

TRANSFER_CHUNK_BYTES: Final = 16 * 2**20
"""Size of a rank's files that node 0 does not see, such as states of random generators.
A lower value rejects nodes with many GPUs; a higher value stalls training, as the files are broadcast."""


class DirectoryCheckpoint(RankZeroState):
    """Files of a framework's checkpoint, held and saved by rank 0.

    The files are memory-mapped until they are copied: the directory may be removed at once, but not written to again.
    """

    def __init__(self, ranks: ProcessGroup, local_rank: int, root: Path) -> None:
        """`root` is the parent directory of a restored checkpoint, on each node."""
        self._ranks = ranks
        self._local_rank = local_rank
        self._root = root
        self._files: dict[str, Tensor] = {}
        self.step = 0
        """Step of the held checkpoint; 0 without one."""
        self.restored: Path | None = None
        """Directory of the restored checkpoint; None without one."""

    def pack(self, path: Path, step: int) -> None:
        """Hold the files in `path`. All ranks call it after they have written their files.

        Raises:
            StoreError: a file cannot be read, or other nodes have too much that node 0 does not see; raised on all ranks.
        """
        files: dict[str, Tensor] = {}
        self._ranks.all_reduce_max([0.0])  # Until all have written.
        with fail_together(self._ranks):
            if self._ranks.rank == 0:
                files = {name: _map_file(path / name) for name in _list_files(path)}
        known = set(json.loads(self._ranks.broadcast(json.dumps(sorted(files)))))
        for source in range(1, self._ranks.world_size):
            collected = self._collect_files(path, known, source)
            known |= collected.keys()
            if self._ranks.rank == 0:
                files |= {name: _tensor(data) for name, data in collected.items()}
        self._files, self.step = files, step

    def state_dict(self) -> dict[str, Any]:
        """The step and the files as a state."""
        return {"step": self.step, "files": dict(self._files)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write the files below the root, once on each node.

        Raises:
            StoreError: a node cannot write them; raised on all ranks.
        """
        step = int(state["step"])
        path = self._root / f"checkpoint-{step}"
        with fail_together(self._ranks):
            if self._local_rank == 0:
                _write_files(path, state["files"], f".{self._ranks.rank}")
        # `fail_together` has waited for all ranks, so that every rank sees the files from here on.
        self.restored = path

    def _collect_files(self, path: Path, known: set[str], source: int) -> dict[str, bytes]:
        """Files that only one rank sees in its directory, on all ranks."""
        text = ""
        with fail_together(self._ranks):
            if self._ranks.rank == source:
                text = _encode_names(path, sorted(set(_list_files(path)) - known), source)
        found = json.loads(self._ranks.broadcast(text, source) or "{}")
        return {name: base64.b64decode(data) for name, data in found.items()}


def _encode_names(path: Path, names: list[str], rank: int) -> str:
    """Encode files as text; empty without files."""
    try:
        size = sum((path / name).stat().st_size for name in names)
        if size > TRANSFER_CHUNK_BYTES:
            raise StoreError(
                f"rank {rank} has {size} bytes of the checkpoint in {path}, which node 0 does not see: "
                "have the framework gather the state on rank 0, or use a directory that all nodes share"
            )
        found = {name: base64.b64encode((path / name).read_bytes()).decode() for name in names}
    except OSError as error:
        raise StoreError(f"rank {rank} cannot read {path}: {error}") from error
    return json.dumps(found) if found else ""


def _list_files(path: Path) -> Iterator[str]:
    """Relative paths of the files below a directory."""
    return (p.relative_to(path).as_posix() for p in sorted(path.rglob("*")) if p.is_file())


def _map_file(file: Path) -> Tensor:
    """The bytes of a file, memory-mapped."""
    try:
        size = file.stat().st_size
        if not size:  # An empty file cannot be mapped.
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


def _write_files(path: Path, files: Mapping[str, Tensor], ending: str) -> None:
    """Write each file atomically, as several nodes may write into a shared directory."""
    try:
        for name, content in files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(file.name + ending)
            draft.write_bytes(content.numpy().tobytes())
            draft.replace(file)
    except OSError as error:
        raise StoreError(f"the checkpoint cannot be written to {path}: {error}") from error
