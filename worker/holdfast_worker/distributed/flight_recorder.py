"""Dumps torch's flight recorder of collectives when the wrapper requests it.

A thread responds, because the training thread may be stuck in the very collective in question.
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
    """Start a thread that responds to requests on this rank's pipe in the run directory."""
    try:
        pipe = run_dir.open_request_pipe(rank)
    except OSError as error:
        log_info(f"collectives of rank {rank} cannot be dumped if it hangs: {error}")
        return
    thread = threading.Thread(
        target=_serve_requests,
        args=(pipe, run_dir.hang_dir, rank),
        name="holdfast-flight",
        daemon=True,
    )
    thread.start()


def _serve_requests(pipe: int, folder: Path, rank: int) -> None:
    while os.read(pipe, 1):
        with suppress(OSError):
            _dump(folder, rank)


def _dump(folder: Path, rank: int) -> None:
    """Write the records as JSON, and NCCL's also in the format of torch's analyzer."""
    folder.mkdir(exist_ok=True)
    records: dict[str, Any] = {}
    # NCCL last, because a request to a hanging GPU may block.
    for backend, name in (("gloo", "_dump_fr_trace_json"), ("nccl", "_dump_nccl_trace_json")):
        if dump := _torch_dump_function(name):
            records[backend] = json.loads(dump())
            draft = folder / f".rank-{rank}.flight.json"
            draft.write_text(json.dumps(records, indent=1))
            draft.replace(folder / f"rank-{rank}.flight.json")
    if dump := _torch_dump_function("_dump_nccl_trace"):
        (folder / f"nccl_rank_{rank}").write_bytes(dump())


def _torch_dump_function(name: str) -> Callable[[], bytes] | None:
    """A private function of torch, if this build has it: those of NCCL exist only in GPU builds."""
    found: Callable[[], bytes] | None = getattr(_distributed_c10d, name, None)
    return found
