"""The flight recorder: torch's own record of collectives, written down by a rank when its wrapper asks for it.

A thread answers, as the one that trains may wait for ever in the very collective that is asked about.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch._C import _distributed_c10d

from holdfast_worker.console import log_info
from holdfast_worker.run_dir import RunDir


def install_dump_handler(run_dir: RunDir, rank: int) -> None:
    """From now on this process answers who writes to its pipe in the run directory."""
    try:
        pipe = run_dir.open_ear(rank)
    except OSError as error:
        log_info(f"what collectives rank {rank} has begun will not be known if it hangs: {error}")
        return
    ear = threading.Thread(
        target=_answer, args=(pipe, run_dir.hang, rank), name="holdfast-flight", daemon=True
    )
    ear.start()


def _answer(pipe: int, folder: Path, rank: int) -> None:
    while os.read(pipe, 1):
        with suppress(OSError):
            _write_down(folder, rank)


def _write_down(folder: Path, rank: int) -> None:
    """What was recorded: as JSON for people and for the wrapper, and that of NCCL as torch's own analyser wants it."""
    folder.mkdir(exist_ok=True)
    records: dict[str, Any] = {}
    # Those of NCCL come last, as whoever asks a GPU that hangs may get no answer.
    for backend, name in (("gloo", "_dump_fr_trace_json"), ("nccl", "_dump_nccl_trace_json")):
        if dump := _torchs(name):
            records[backend] = json.loads(dump())
            draft = folder / f".rank-{rank}.flight.json"
            draft.write_text(json.dumps(records, indent=1))
            draft.replace(folder / f"rank-{rank}.flight.json")
    if dump := _torchs("_dump_nccl_trace"):
        (folder / f"nccl_rank_{rank}").write_bytes(dump())


def _torchs(name: str) -> Callable[[], bytes] | None:
    """One of torch's private functions, if this build has it: those of NCCL are in builds for GPUs alone."""
    found: Callable[[], bytes] | None = getattr(_distributed_c10d, name, None)
    return found
