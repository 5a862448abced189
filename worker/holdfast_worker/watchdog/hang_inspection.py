"""Hang inspection: records the stacks and collectives of this node's stalled ranks.

Standard library only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog import stack_dump
from holdfast_worker.watchdog.hang_attribution import RankInspection

RECORD_TIMEOUT_S: Final = 3.0
"""Time for a rank to write its record.
A lower value misses a long record; a higher value pays for nodes that hang."""
PAUSE_S: Final = 0.05
SUMMARY_FRAMES: Final = 12
"""Frames of the main thread in the log of a rank.
A lower value may end before the script; a higher value hides earlier lines."""


def inspect_ranks(run_dir: RunDir, ranks: Sequence[int]) -> tuple[RankInspection, ...]:
    """Inspect the ranks of this node.

    Full stacks go to the run directory, a summary to their logs.
    """
    pids = run_dir.registered_pids()
    present = [rank for rank in ranks if rank in pids]
    if not present:
        return ()
    with ThreadPoolExecutor(len(present)) as executor:
        return tuple(executor.map(lambda rank: _inspect_rank(run_dir, rank, pids[rank]), present))


def log_advice(run_dir: RunDir) -> None:
    """Log what users can do about a stall, and where its records are."""
    log_info(
        "if the script was busy with long work, call run.beat() in it or increase holdfast.limits.max_stall; "
        f"stacks of all ranks are in {run_dir.hang_dir}"
    )


def _inspect_rank(run_dir: RunDir, rank: int, pid: int) -> RankInspection:
    is_stopped = stack_dump.is_stopped(pid)
    record = run_dir.hang_dir / f"rank-{rank}.flight.json"
    # Before py-spy halts the process to read its stacks.
    collectives = {} if is_stopped else _recorded_collectives(run_dir, rank, record)
    seen = stack_dump.dump_stacks(pid, run_dir.stack_dump_file(rank))
    with suppress(OSError):
        (run_dir.hang_dir / f"rank-{rank}.stacks.txt").write_text(seen.text)
        with run_dir.log_file(rank).open("a") as log:
            log.write(_summary(seen, is_stopped=is_stopped, whole=run_dir.hang_dir))
    return RankInspection(
        rank=rank,
        is_stopped=is_stopped,
        location=seen.location,
        is_in_torch=seen.is_in_torch,
        collectives=collectives,
    )


def _recorded_collectives(run_dir: RunDir, rank: int, record: Path) -> dict[str, int]:
    """Number of collectives that a rank has begun, by process group; empty if unknown."""
    record.unlink(missing_ok=True)
    if not run_dir.request_record(rank):
        return {}
    until_s = time.monotonic() + RECORD_TIMEOUT_S
    while not record.exists() and time.monotonic() < until_s:
        time.sleep(PAUSE_S)
    try:
        return collectives_started(json.loads(record.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def collectives_started(
    record: Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]],
) -> dict[str, int]:
    """Number of begun collectives by process group, from torch's record."""
    return {
        f"{backend} {group}": int(status["last_enqueued_collective"])
        for backend, groups in record.items()
        for group, status in groups["pg_status"].items()
    }


def _summary(seen: stack_dump.StackDump, *, is_stopped: bool, whole: Path) -> str:
    """The summary for the log of a rank, on new lines, as the log may end in a progress bar."""
    state = "is stopped" if is_stopped else "is stalled"
    lines = [f"holdfast: this rank {state}; the stacks of all threads are in {whole}"]
    if seen.main:
        lines += [f"holdfast:     {frame}" for frame in seen.main[:SUMMARY_FRAMES]]
    else:
        lines += [f"holdfast: {line}" for line in seen.text.splitlines()[:SUMMARY_FRAMES]]
    return "\n".join(["", *lines, ""])
