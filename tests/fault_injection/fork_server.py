"""A fork server: a process that has torch and the worker in memory, and forks ranks that need not import them.

To import torch costs a second and a half of a processor, which is more than all that a rank of a storm does. A rank that was
forked is a rank like any other: with a process id, a process group, sockets and threads of its own, and it begins with the
real `holdfast_worker.node.rank_entrypoint`. Nothing of the kind may be there at the fork; so the fork server computes nothing itself.
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

from fault_injection.crash_points import CrashPoint, lay
from holdfast_worker.parent_process import die_with_parent

TESTS: Final = Path(__file__).parents[1]
REMEMBERED: Final = (
    "holdfast_worker.node.rank_entrypoint",
    "holdfast_worker.run",
    "holdfast_worker.storage.s3",
    "torch._dynamo",
    "torch.distributed.fsdp",
)
"""What a rank would import, here or there, and what these import."""


@dataclass(frozen=True)
class RankSpec:
    """What is to become of a fork."""

    argv: Sequence[str]
    """Of `holdfast_worker.node.rank_entrypoint`: the script and its arguments."""
    env: dict[str, str]
    log: str
    """For its output before it has a log."""
    struck: str = os.devnull
    """The file in which a rank records the crash point at which it was killed."""
    points: Sequence[CrashPoint] = ()


class ForkServer:
    """The client of a fork server."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self._orders: IO[bytes] = process.stdin
        self._news = process.stdout.fileno()
        self._heard = b""

    def fork(self, specs: Sequence[RankSpec]) -> list[int]:
        """Process ids of new ranks, which are a process group of their own, named for the first of them."""
        self._orders.write(json.dumps([asdict(spec) for spec in specs]).encode() + b"\n")
        self._orders.flush()
        result = self._listen(60.0)
        assert result is not None, "the fork server does not answer"
        pids: list[int] = result["hatched"]
        return pids

    def ended(self, within_s: float) -> tuple[int, int] | None:
        """Process id and exit code (-n: by signal n) of the next rank that ends; None: none ended in that time."""
        result = self._listen(within_s)
        return result and (result["ended"], result["code"])

    def _listen(self, within_s: float) -> dict[str, Any] | None:
        until_s = time.monotonic() + within_s
        while b"\n" not in self._heard:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self._news], [], [], left_s)[0]:
                return None
            result = os.read(self._news, 1 << 16)
            assert result, "the fork server has died"
            self._heard += result
        line, _, self._heard = self._heard.partition(b"\n")
        body: dict[str, Any] = json.loads(line)
        return body


@contextmanager
def opened() -> Iterator[ForkServer]:
    """A fork server, which ends with the test process together with its forks."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
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
    """Fork on request, until the requests end. Returns in each fork with its specification."""
    die_with_parent()
    _remember()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    orders = b""
    while True:
        ready, _, _ = select.select([0, reader], [], [])
        if reader in ready:
            os.read(reader, 1 << 10)
            _tell_of_the_dead()
        if 0 not in ready:
            continue
        result = os.read(0, 1 << 16)
        if not result:
            return
        orders += result
        if b"\n" not in orders:
            continue
        line, _, orders = orders.partition(b"\n")
        spec = _fork_ranks([_rank_spec(raw) for raw in json.loads(line)])
        if spec:
            os.close(reader)
            os.close(writer)
            _become(spec)
            return


def _remember() -> None:
    """Import what a rank imports, and let nothing of it be copied by a collection of garbage in a fork."""
    for module in REMEMBERED:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a thread would not be there after the fork"
    gc.collect()
    gc.freeze()


def _fork_ranks(specs: list[RankSpec]) -> RankSpec | None:
    """The specification of a fork, in the fork; None here. No fork continues before all are in their group."""
    held, let_go = os.pipe()
    pids: list[int] = []
    for spec in specs:
        pid = os.fork()
        if not pid:
            os.close(let_go)
            os.read(held, 1)
            os.close(held)
            return spec
        pids.append(pid)
        os.setpgid(pid, pids[0])
    os.close(held)
    os.close(let_go)
    _say({"hatched": pids})
    return None


def _rank_spec(raw: dict[str, Any]) -> RankSpec:
    return RankSpec(**{**raw, "points": [CrashPoint(**point) for point in raw["points"]]})


def _tell_of_the_dead() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(told: dict[str, Any]) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


def _become(spec: RankSpec) -> None:
    """Leave nothing of the fork server, and be the process that was asked for."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for file, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(spec.env)
    sys.argv = ["holdfast_worker.node.rank_entrypoint", *spec.argv]
    lay(spec.points, Path(spec.struck))
    _live()


def _live() -> None:
    """Run the rank to the end of its exit handlers; what an interpreter does after them, torch's memory makes dear."""
    from holdfast_worker.node import rank_entrypoint

    code = 1  # What an error ends with, after its hook.

    def end() -> None:
        sys.stdout.flush()
        os._exit(code)

    atexit.register(end)  # The first to be registered is the last to run.
    try:
        rank_entrypoint.main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else bool(left.code)
    else:
        code = 0


if __name__ == "__main__":
    main()
