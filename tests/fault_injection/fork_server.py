"""A fork server for ranks: a process that has imported torch and the worker.

An import of torch takes 1.5 s of CPU time, more than the whole run of a rank in these tests. A forked rank is
like any other: it has its own process id, process group, sockets and threads, and starts with the real
`holdfast_worker.node.rank_entrypoint`. None of these may exist before the fork, so that the fork server
computes nothing itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from fault_injection.crash_points import CrashPoint, install
from holdfast_worker.parent_process import die_with_parent

TESTS: Final = Path(__file__).parents[1]
PRELOADED: Final = (
    "holdfast_worker.node.rank_entrypoint",
    "holdfast_worker.run",
    "holdfast_worker.storage.cloud",
    "holdfast_worker.storage.s3",
    "torch._dynamo",
    "torch.distributed.fsdp",
)
"""Modules that a rank would import, with their dependencies."""


@dataclass(frozen=True)
class RankSpec:
    """Specification of a forked rank."""

    argv: Sequence[str]
    """Arguments of `holdfast_worker.node.rank_entrypoint`: the script and its arguments."""
    env: dict[str, str]
    log: str
    """Receives the output until the rank has its log."""
    reached: str = os.devnull
    """The file in which the rank records the crash points that it reaches."""
    points: Sequence[CrashPoint] = ()


class ForkServer:
    """The client of a fork server."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self._requests: IO[bytes] = process.stdin
        self._responses = process.stdout.fileno()
        self._buffer = b""

    def fork(self, specs: Sequence[RankSpec]) -> list[int]:
        """Fork ranks as a process group that the first one leads; return their process ids."""
        self._requests.write(json.dumps([asdict(spec) for spec in specs]).encode() + b"\n")
        self._requests.flush()
        result = self._receive(200.0)  # It imports torch first.
        assert result is not None, "the fork server does not answer"
        pids: list[int] = result["forked"]
        return pids

    def ended(self, within_s: float) -> tuple[int, int] | None:
        """Return process id and exit code (-n: signal n) of the next rank to exit; None: timeout."""
        result = self._receive(within_s)
        return result and (result["ended"], result["code"])

    def _receive(self, within_s: float) -> dict[str, Any] | None:
        until_s = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self._responses], [], [], left_s)[0]:
                return None
            result = os.read(self._responses, 1 << 16)
            assert result, "the fork server has died"
            self._buffer += result
        line, _, self._buffer = self._buffer.partition(b"\n")
        body: dict[str, Any] = json.loads(line)
        return body


@contextmanager
def opened() -> Iterator[ForkServer]:
    """Start a fork server, which ends together with its forks when the test process ends."""
    paths = filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        [sys.executable, "-m", "fault_injection.fork_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    ) as process:
        try:
            yield ForkServer(process)
        finally:
            assert process.stdin
            process.stdin.close()


def main() -> None:
    """Fork on request until the input ends. Returns the specification in each fork."""
    die_with_parent()
    _preload()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    requests = b""
    while True:
        ready, _, _ = select.select([0, reader], [], [])
        if reader in ready:
            os.read(reader, 1 << 10)
            _report_exits()
        if 0 not in ready:
            continue
        result = os.read(0, 1 << 16)
        if not result:
            return
        requests += result
        if b"\n" not in requests:
            continue
        line, _, requests = requests.partition(b"\n")
        spec = _fork_ranks([_rank_spec(raw) for raw in json.loads(line)])
        if spec:
            os.close(reader)
            os.close(writer)
            _set_up_rank(spec)
            return


def _preload() -> None:
    """Import the modules of a rank, and exempt their objects from garbage collection in forks."""
    for module in PRELOADED:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a thread would not be there after the fork"
    gc.collect()
    gc.freeze()


def _fork_ranks(specs: list[RankSpec]) -> RankSpec | None:
    """Return the specification in a fork and None here.

    All forks wait until their group is complete.
    """
    start_reader, start_writer = os.pipe()
    pids: list[int] = []
    for spec in specs:
        pid = os.fork()
        if not pid:
            os.close(start_writer)
            os.read(start_reader, 1)
            os.close(start_reader)
            return spec
        pids.append(pid)
        os.setpgid(pid, pids[0])
    os.close(start_reader)
    os.close(start_writer)
    _send({"forked": pids})
    return None


def _rank_spec(raw: dict[str, Any]) -> RankSpec:
    return RankSpec(**{**raw, "points": [CrashPoint(**point) for point in raw["points"]]})


def _report_exits() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _send({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _set_up_rank(spec: RankSpec) -> None:
    """Replace all state of the fork server by that of a rank."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for file, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    os.close(null)
    os.close(log)
    os.environ.clear()
    os.environ.update(spec.env)
    sys.argv = ["holdfast_worker.node.rank_entrypoint", *spec.argv]
    install(spec.points, Path(spec.reached))
    _run_rank()


def _run_rank() -> None:
    """Run the rank until its exit handlers are done.

    The remaining steps of an interpreter's exit are slow with torch's memory.
    """
    from holdfast_worker.node import rank_entrypoint

    code = 1  # The exit code after an uncaught exception.

    def end() -> None:
        sys.stdout.flush()
        os._exit(code)

    atexit.register(end)  # The first registered handler runs last.
    try:
        rank_entrypoint.main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else bool(exit_.code)
    else:
        code = 0


if __name__ == "__main__":
    main()
