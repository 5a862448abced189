"""The run directory: files of a launcher, a wrapper and the ranks of a node.

Standard library only.

The first writer of a file wins. A rank that fails as a consequence of another failure must not overwrite the first
reason, and a wrapper must not overwrite a notice in which the launcher named the deadline.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast_worker.clock import to_iso
from holdfast_worker.console import PREFIX, STEP
from holdfast_worker.protocol.environment import (
    HOSTED_LOG_SUFFIX,
    JOINED_FILE,
    LEFT_FILE,
    NOTICE_FILE,
    TRAINED_FILE,
    WAITS_FILE,
)
from holdfast_worker.protocol.reports import PERCENTILES, JobStop

HINT_FILE: Final = "hint.json"
"""Written by the wrapper on a rebalance recommendation of the cloud.
Format: `{"at": RFC 3339 time}`."""
GROUP_FILE: Final = "group.json"
"""Written by the wrapper: the newest process group (`watchdog.group_files`)."""
REPLACEABLE_FILE: Final = "replaceable"
"""Written by ranks whose script does nothing that rules out a new rank in the place of a lost one."""
SNAPSHOTS_FILE: Final = "snapshots"
"""Written by ranks whose snapshots are also in the memory of other nodes, so that all start again if a node is lost."""
MOVE_FILE: Final = "move"
"""Written by the wrapper of node 0 to have all ranks meet again between two steps."""
GPUS_FILE: Final = "gpus.json"
"""Written by the wrapper of node 0: the newest readings of the GPUs of all nodes."""
GPU_FAULTS_FILE: Final = "gpu-faults.json"
"""Written by the process that reports them: the faults of GPUs that are reported."""
STOP_FILE: Final = "stop.json"
"""Written by the process that delivers reports: `{"stop": ...}`, what becomes of a job that stops."""
TRACKER_FILE: Final = "tracker.json"
"""Written by rank 0 while the run of a tracker is open (`node.open_trackers`)."""
END_FILE: Final = "end.json"
"""Written by rank 0 without contents, to be filled by the process that delivers reports: `{"p10": ..., "p50": ..., "p90": ...}`, the expected
end of the job on the monotonic clock of this machine, in seconds."""
EPOCH_FILE: Final = "epoch"
"""Written by rank 0: the epoch that it has claimed in the store, if the launcher assigned none."""
FAILURE_FILE: Final = "failure.json"
"""Written by the agent: `{"rank": ..., "exit_code": ...}` of the rank that failed first."""

MAX_TAIL_BYTES: Final = 64 * 1024
"""Bytes at the end of a log that are searched for its last line.
A lower value may cut the line; a higher value reads more of a log that can be a month long."""


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why a rank stopped stepping."""

    reason: str
    exit_code: int
    step: int
    detail: str = ""
    rank: int | None = None
    """The rank that reports the reason; None if all ranks agreed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The rank of a node that failed first."""

    rank: int
    exit_code: int
    """As a shell would show it: 128 + n after signal n."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one node of one placement."""

    path: Path

    def clear(self) -> None:
        """Remove the files of an earlier run, except a notice or a hint, which may precede this run."""
        status = (STOP_FILE, TRACKER_FILE, END_FILE)
        for name in (JOINED_FILE, TRAINED_FILE, EPOCH_FILE, GPUS_FILE, GPU_FAULTS_FILE, *status):
            (self.path / name).unlink(missing_ok=True)
        self.mark_snapshots(are_kept=False)
        self.withdraw_waiting()
        self.clear_ranks()
        self.clear_group()

    def clear_group(self) -> None:
        """Remove what is known of the process group, because all ranks start again."""
        self.withdraw_move()
        (self.path / "ranks" / GROUP_FILE).unlink(missing_ok=True)
        (self.path / REPLACEABLE_FILE).unlink(missing_ok=True)

    def clear_ranks(self) -> None:
        """Remove the files of ranks that have ended, so that others can start in their place."""
        (self.path / "ranks").mkdir(parents=True, exist_ok=True)
        for name in (LEFT_FILE, FAILURE_FILE):
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("*.pid", "*.beat", "*.ask", "*.wait"):
            for file in (self.path / "ranks").glob(pattern):
                file.unlink()
        shutil.rmtree(self.hang_dir, ignore_errors=True)
        self.hang_dir.mkdir(exist_ok=True)
        self.nccl_dir.mkdir(exist_ok=True)

    def log_file(self, rank: int) -> Path:
        """The log file of a rank's output."""
        return self.path / "ranks" / f"rank-{rank}.log"

    def hosted_log_file(self, rank: int) -> Path:
        """The log file of a rank of a missing node that runs on this one."""
        return self.path / "ranks" / f"rank-{rank}{HOSTED_LOG_SUFFIX}"

    def last_line(self, rank: int) -> str:
        """The last line of a rank's output that is neither blank nor a progress line.

        Empty without such a line.
        """
        try:
            with self.log_file(rank).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        found = (line.strip() for line in reversed(lines) if not line.startswith(PREFIX + STEP))
        return next(filter(None, found), "")

    def register(self, rank: int, pid: int) -> None:
        """Record the process id of a rank, for the wrapper's signals."""
        (self.path / "ranks").mkdir(parents=True, exist_ok=True)
        write_first(self.path / "ranks" / f"rank-{rank}.pid", str(pid))

    def registered_pids(self) -> dict[int, int]:
        """Process ids of this node's ranks, by rank."""
        files = (self.path / "ranks").glob("rank-*.pid")
        return {int(file.stem.removeprefix("rank-")): int(file.read_text()) for file in files}

    @property
    def hang_dir(self) -> Path:
        """Directory of the stacks and records of stalled ranks."""
        return self.path / "hang"

    @property
    def nccl_dir(self) -> Path:
        """Directory of NCCL's logs, one file for each process; logs of older runs are kept."""
        return self.path / "nccl"

    def stack_dump_file(self, rank: int) -> Path:
        """The file into which a rank writes its thread stacks on request."""
        return self.hang_dir / f"rank-{rank}.answers.txt"

    def publish_heartbeat(self, rank: int, path: str) -> None:
        """Record the path of a rank's heartbeat file, for the wrapper."""
        (self.path / "ranks").mkdir(parents=True, exist_ok=True)
        write_first(self.path / "ranks" / f"rank-{rank}.beat", path)

    def heartbeat_files(self) -> dict[int, Path]:
        """Heartbeat files of this node's ranks, by rank."""
        files = (self.path / "ranks").glob("rank-*.beat")
        return {int(file.stem.removeprefix("rank-")): Path(file.read_text()) for file in files}

    def open_request_pipe(self, rank: int) -> int:
        """Create the pipe for the wrapper's requests to a rank, and return its file descriptor."""
        pipe = self.path / "ranks" / f"rank-{rank}.ask"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        # Also for writing, so that a read blocks instead of returning end of file.
        return os.open(pipe, os.O_RDWR)

    def request_record(self, rank: int) -> bool:
        """Request the stacks and records of a rank; False if it has no request pipe."""
        try:
            pipe = os.open(self.path / "ranks" / f"rank-{rank}.ask", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return os.write(pipe, b"?") == 1
        except OSError:
            return False
        finally:
            os.close(pipe)

    def record_notice(self, deadline: datetime | None) -> None:
        """Record a termination notice, unless one is recorded already."""
        text = None if deadline is None else to_iso(deadline)
        write_first(self.path / NOTICE_FILE, json.dumps({"deadline": text}))

    def is_noticed(self) -> bool:
        """Whether a termination notice is recorded."""
        return (self.path / NOTICE_FILE).exists()

    def deadline(self) -> datetime | None:
        """When the node is terminated; None without a notice, or if the notice names no time."""
        raw = read_json(self.path / NOTICE_FILE)
        text = None if raw is None else raw.get("deadline")
        return datetime.fromisoformat(text) if isinstance(text, str) else None

    def record_hint(self, at: datetime) -> None:
        """Record a rebalance recommendation: no reason to exit, but a reason to save soon."""
        write_first(self.path / HINT_FILE, json.dumps({"at": to_iso(at)}))

    def is_hinted(self) -> bool:
        """Whether a rebalance recommendation is recorded."""
        return (self.path / HINT_FILE).exists()

    def record_exit(self, left: ExitReason) -> None:
        """Record why the first rank of this node exits; later reasons are consequences of the first."""
        write_first(self.path / LEFT_FILE, json.dumps(asdict(left)))

    def replace_exit_reason(self, left: ExitReason) -> None:
        """Overwrite the exit reason of one rank with the cause that the wrapper found for all ranks."""
        _replace(self.path / LEFT_FILE, json.dumps(asdict(left)))

    def exit_reason(self) -> ExitReason | None:
        """Why the first rank exited; None if no reason is recorded."""
        raw = read_json(self.path / LEFT_FILE)
        if raw is None:
            return None
        return ExitReason(
            str(raw["reason"]),
            int(str(raw["exit_code"])),
            int(str(raw["step"])),
            str(raw["detail"]),
            None if raw.get("rank") is None else int(str(raw["rank"])),
        )

    def record_epoch(self, epoch: int) -> None:
        """Record the epoch that this attempt has claimed; ranks that start again claim a higher one."""
        draft = self.path / f".{EPOCH_FILE}"
        draft.write_text(str(epoch))
        draft.replace(self.path / EPOCH_FILE)

    def epoch(self) -> int | None:
        """The epoch that this attempt has claimed; None if it has claimed none."""
        try:
            return int((self.path / EPOCH_FILE).read_text())
        except FileNotFoundError:
            return None

    def mark_joined(self) -> None:
        """Record that the ranks of this node take part in the run."""
        (self.path / JOINED_FILE).touch()

    def mark_trained(self) -> None:
        """Record that a first step has been completed."""
        (self.path / TRAINED_FILE).touch()

    def has_trained(self) -> bool:
        """Whether a first step has been completed."""
        return (self.path / TRAINED_FILE).exists()

    def mark_replaceable(self) -> None:
        """Record that a new rank can take the place of a lost one, as far as the script is known."""
        (self.path / REPLACEABLE_FILE).touch()

    def can_replace_ranks(self) -> bool:
        """Whether a new rank can take the place of a lost one, after the first step."""
        return self.has_trained() and (self.path / REPLACEABLE_FILE).exists()

    def keeps_state(self) -> bool:
        """Whether the ranks of other nodes keep the state of a lost one, or snapshots of it."""
        return (self.path / REPLACEABLE_FILE).exists() or (self.path / SNAPSHOTS_FILE).exists()

    def mark_snapshots(self, *, are_kept: bool) -> None:
        """Record whether snapshots of the ranks are also in the memory of other nodes."""
        if are_kept:
            (self.path / SNAPSHOTS_FILE).touch()
        else:
            (self.path / SNAPSHOTS_FILE).unlink(missing_ok=True)

    def keeps_snapshots(self) -> bool:
        """Whether snapshots of the ranks are in the memory of other nodes, after the first step."""
        return self.has_trained() and (self.path / SNAPSHOTS_FILE).exists()

    def would_wait(self) -> bool:
        """Whether the other nodes would wait for a lost node's replacement."""
        return self.has_trained() and self.keeps_state()

    def announce_waiting(self) -> None:
        """Record that the other nodes would wait for a lost node's replacement."""
        if not (self.path / WAITS_FILE).exists():
            (self.path / WAITS_FILE).touch()

    def withdraw_waiting(self) -> None:
        """Record that the ranks would not wait for a lost node's replacement."""
        with suppress(OSError):
            (self.path / WAITS_FILE).unlink(missing_ok=True)

    def request_move(self) -> None:
        """Have all ranks meet again between two steps, so that some can move to another node."""
        (self.path / MOVE_FILE).touch()

    def withdraw_move(self) -> None:
        """Record that the ranks have met, or need not."""
        (self.path / MOVE_FILE).unlink(missing_ok=True)

    def is_move_requested(self) -> bool:
        """Whether all ranks have to meet again between two steps."""
        return (self.path / MOVE_FILE).exists()

    def write_gpus(self, text: str) -> None:
        """Replace the readings of the GPUs of all nodes."""
        _replace(self.path / GPUS_FILE, text)

    def read_gpus(self) -> str:
        """The readings of the GPUs of all nodes; empty without any."""
        try:
            return (self.path / GPUS_FILE).read_text()
        except FileNotFoundError:
            return ""

    def record_gpu_faults(self, faults: frozenset[str]) -> None:
        """Record which faults of GPUs are reported."""
        _replace(self.path / GPU_FAULTS_FILE, json.dumps({"faults": sorted(faults)}))

    def reported_gpu_faults(self) -> frozenset[str]:
        """The faults of GPUs that are reported."""
        faults = (read_json(self.path / GPU_FAULTS_FILE) or {}).get("faults")
        return frozenset(map(str, faults)) if isinstance(faults, list) else frozenset()

    def record_stop(self, stop: JobStop) -> None:
        """Record what becomes of the job, as it stops."""
        _replace(self.path / STOP_FILE, json.dumps({"stop": stop}))

    def stop(self) -> JobStop | None:
        """What becomes of the job; None while it does not stop, as far as known."""
        return JobStop.parse((read_json(self.path / STOP_FILE) or {}).get("stop"))

    def ask_for_end(self) -> None:
        """Have the expected end of the job recorded."""
        (self.path / END_FILE).touch()

    def wants_end(self) -> bool:
        """Whether the expected end of the job is to be recorded."""
        return (self.path / END_FILE).exists()

    def record_end(self, monotonic_s: Mapping[str, float]) -> None:
        """Record the expected end of the job, by percentile."""
        _replace(self.path / END_FILE, json.dumps(dict(monotonic_s)))

    def expected_end(self) -> Mapping[str, float]:
        """The expected end of the job on the monotonic clock, by percentile; empty if unknown."""
        raw = read_json(self.path / END_FILE) or {}
        return {name: float(str(raw[name])) for name in PERCENTILES if name in raw}

    def record_tracker(self, text: str) -> None:
        """Record the open run of a tracker, for this user only: addresses may have passwords."""
        file = self.path / TRACKER_FILE
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(text)

    def open_tracker(self) -> dict[str, object] | None:
        """The open run of a tracker; None without one."""
        return read_json(self.path / TRACKER_FILE)

    def clear_tracker(self) -> None:
        """Record that no run of a tracker is open."""
        (self.path / TRACKER_FILE).unlink(missing_ok=True)

    def record_failure(self, failure: Failure) -> None:
        """Record which rank failed first."""
        write_first(self.path / FAILURE_FILE, json.dumps(asdict(failure)))

    def failure(self) -> Failure | None:
        """The rank that failed first; None if no failure is recorded."""
        raw = read_json(self.path / FAILURE_FILE)
        return None if raw is None else Failure(int(str(raw["rank"])), int(str(raw["exit_code"])))


def write_first(path: Path, text: str) -> None:
    """Create a file atomically unless it exists. Uses a hard link, as a rename would overwrite."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    try:
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()


def _replace(path: Path, text: str) -> None:
    """Write a file, or replace it atomically."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text)
    draft.replace(path)


def read_json(path: Path) -> dict[str, object] | None:
    """The JSON object in a file; None if the file is absent or has no object."""
    try:
        raw = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return raw if isinstance(raw, dict) else None
