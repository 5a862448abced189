"""An inquest: what the ranks of this node do that stand still, written down and summed up. Standard library only."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog import stack_dump
from holdfast_worker.watchdog.hang_attribution import Finding

RECORD_S: Final = 3.0
"""For a rank to write down what it recorded. Longer keeps nodes that hang, shorter misses a long record."""
PAUSE_S: Final = 0.05
SHORT_FRAMES: Final = 12
"""Of the main thread, in the log of a rank. More hides what came before, fewer may end before the script."""


def inspect_ranks(run_dir: RunDir, ranks: Sequence[int]) -> list[Finding]:
    """What is found out about the ranks of this node. The whole of it is left in the run directory, the gist in their logs."""
    pids = run_dir.registered()
    present = [rank for rank in ranks if rank in pids]
    if not present:
        return []
    with ThreadPoolExecutor(len(present)) as examiners:
        return list(examiners.map(lambda rank: _examine(run_dir, rank, pids[rank]), present))


def _examine(run_dir: RunDir, rank: int, pid: int) -> Finding:
    is_stopped = stack_dump.is_stopped(pid)
    record = run_dir.hang / f"rank-{rank}.flight.json"
    # Before anybody halts it to look at its stacks.
    collectives = {} if is_stopped else _recorded(run_dir, rank, record)
    seen = stack_dump.look(pid, run_dir.answers(rank))
    with suppress(OSError):
        (run_dir.hang / f"rank-{rank}.stacks.txt").write_text(seen.text)
        with run_dir.log(rank).open("a") as log:
            log.write(_gist(seen, is_stopped=is_stopped, whole=run_dir.hang))
    return Finding(
        rank=rank,
        is_stopped=is_stopped,
        place=seen.place,
        is_in_torch=seen.is_in_torch,
        collectives=collectives,
    )


def _recorded(run_dir: RunDir, rank: int, record: Path) -> dict[str, int]:
    """Collectives that a rank has begun, by process group; empty if it does not say."""
    record.unlink(missing_ok=True)
    if not run_dir.ask(rank):
        return {}
    until_s = time.monotonic() + RECORD_S
    while not record.exists() and time.monotonic() < until_s:
        time.sleep(PAUSE_S)
    try:
        return collectives_started(json.loads(record.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def collectives_started(
    record: Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]],
) -> dict[str, int]:
    """Collectives that were begun, by process group, in torch's record of them."""
    return {
        f"{backend} {group}": int(status["last_enqueued_collective"])
        for backend, told in record.items()
        for group, status in told["pg_status"].items()
    }


def _gist(seen: stack_dump.Stacks, *, is_stopped: bool, whole: Path) -> str:
    """What the log of a rank is to say, on lines of its own: a progress bar may stand on the last one."""
    state = "is stopped" if is_stopped else "stands still"
    lines = [f"holdfast: this rank {state}; all of its threads are in {whole}"]
    if seen.main:
        lines += [f"holdfast:     {frame}" for frame in seen.main[:SHORT_FRAMES]]
    else:
        lines += [f"holdfast: {line}" for line in seen.text.splitlines()[:SHORT_FRAMES]]
    return "\n".join(["", *lines, ""])
