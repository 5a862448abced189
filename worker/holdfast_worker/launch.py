"""One node of a run: torchrun under it, notices to its ranks, reports to the service, and the true exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from holdfast_worker.config import COURIER, Config, surroundings
from holdfast_worker.console import tell
from holdfast_worker.courier import Courier, Doorstep
from holdfast_worker.departure import LONGEST_DETAIL
from holdfast_worker.echo import Echo
from holdfast_worker.reports import Reports
from holdfast_worker.rundir import Left, RunDir
from holdfast_worker.spool import Spool, read_spool, spool_file
from holdfast_worker.topology import Topology
from holdfast_worker.wire import Env, Exit, ReportKind

LOOK_S: Final = 0.1
"""How often the node is looked after. Longer delays a notice, shorter burns a core."""


class Node:
    """A node while its ranks run."""

    def __init__(self, topology: Topology, run_dir: RunDir, config: Config) -> None:
        self._topology = topology
        self._run_dir = run_dir
        self._config = config
        self._is_told_to_go = False
        self._lefts_before = _count_lefts(config)

    def run(self, script: Sequence[str], ranks: int | None) -> int:
        """The exit code of a whole run of `script`, as the ranks meant it. `ranks` is None for one per GPU."""
        self._run_dir.clear()
        with self._courier(), self._told_by_signals():
            ranks = ranks or _ranks_of(self._topology)
            first_rank = self._topology.node_rank * ranks
            echo = Echo(self._run_dir.log(first_rank), sys.stdout.buffer)
            agent = subprocess.Popen(
                self._command(script, ranks), env=self._environment(), start_new_session=True
            )
            while _is_running(agent):
                echo.copy()
                self._pass_on_notice()
            echo.copy()
            code = self._exit_code(agent.returncode)
            self._fill_in_for_the_dead(code)
        return code

    def _command(self, script: Sequence[str], ranks: int) -> list[str]:
        at = self._topology
        return [
            # -P: a module beside the script must not stand in for one that torchrun needs.
            *(sys.executable, "-P", "-m", "holdfast_worker.agent"),
            f"--nnodes={at.nodes}",
            f"--node-rank={at.node_rank}",
            f"--nproc-per-node={ranks}",
            f"--master-addr={at.master_address}",
            f"--master-port={at.master_port}",
            "--max-restarts=0",
            # Without the dashes, torchrun takes what the script is given for abbreviations of its own options.
            *("-m", "--", "holdfast_worker.entry"),
            *script,
        ]

    def _environment(self) -> dict[str, str]:
        return {**surroundings(), Env.RUN_DIR: str(self._run_dir.path), COURIER: "1"}

    @contextmanager
    def _told_by_signals(self) -> Iterator[None]:
        """Until the end, SIGTERM and SIGINT mean that the node is about to be taken."""

        def hear(_signal: int, _frame: FrameType | None) -> None:
            self._is_told_to_go = True

        before = {which: signal.signal(which, hear) for which in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    def _pass_on_notice(self) -> None:
        """Tell the ranks, not torchrun: that would kill them after a few seconds."""
        if not self._is_told_to_go:
            return
        self._is_told_to_go = False
        self._run_dir.notice(deadline=None)
        for pid in self._run_dir.registered().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    @contextmanager
    def _courier(self) -> Iterator[None]:
        """On the first node, reports are delivered until the end, and a little longer."""
        config = self._config
        if self._topology.node_rank or not (config.url and config.spool):
            yield
            return
        doorstep = Doorstep(config.url, config.job, config.token)
        courier = Courier(doorstep, config.spool, config.attempt)
        courier.start()
        try:
            yield
        finally:
            courier.close()

    def _exit_code(self, torchrun_code: int) -> int:
        """What the ranks meant; torchrun says 1 whatever they said."""
        left = self._run_dir.left()
        if left and left.exit_code not in (Exit.DONE, Exit.FAILED):
            return left.exit_code
        if torchrun_code == 0:
            return Exit.DONE
        if self._run_dir.is_noticed() and not self._run_dir.registered():
            return Exit.PREEMPTED
        failure = self._run_dir.failure()
        if failure:
            return failure.exit_code
        return 128 - torchrun_code if torchrun_code < 0 else torchrun_code

    def _fill_in_for_the_dead(self, code: int) -> None:
        """Report how the ranks left if none of them could: killed at once, or before there was a run."""
        config = self._config
        if (
            self._topology.node_rank
            or not config.spool
            or _count_lefts(config) > self._lefts_before
        ):
            return
        left = self._run_dir.left()
        step = left.step if left else _last_step(config)
        detail = left.detail if left else self._last_words(code)
        Reports(Spool(config.spool, config.attempt)).worker_left(
            Left(self._reason(code), code, step, detail)
        )

    def _reason(self, code: int) -> str:
        if code == Exit.DONE:
            return "finished"
        is_preempted = code == Exit.PREEMPTED or self._run_dir.is_noticed()
        return "preempted" if is_preempted else "failed"

    def _last_words(self, code: int) -> str:
        """The last line of the rank that fell first: as a rule the message of its error."""
        if code == Exit.DONE:
            return ""
        failure = self._run_dir.failure()
        if not failure:
            return f"the ranks left with exit code {code}"
        words = ""
        with suppress(FileNotFoundError):
            lines = self._run_dir.log(failure.rank).read_text(errors="replace").splitlines()
            words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if failure.exit_code > 128:
            return f"rank {failure.rank} was killed by signal {failure.exit_code - 128}"
        return f"rank {failure.rank}: {words[:LONGEST_DETAIL]}"


def launch(script: Sequence[str], ranks: int | None) -> int:
    """The exit code of `script`, run on this node with `ranks` processes; None means as many as there are GPUs."""
    try:
        config = Config.read(surroundings())
        topology = Topology.read(surroundings())
    except ValueError as error:
        tell(str(error))
        return Exit.USAGE
    if not Path(script[0]).is_file():
        tell(f"there is no script {script[0]} in {Path.cwd()}")
        return Exit.USAGE
    path = config.run_dir or Path(tempfile.mkdtemp(prefix="holdfast-run-"))
    return Node(topology, RunDir(path), config).run(script, ranks)


def _ranks_of(topology: Topology) -> int:
    """One for each GPU of this node, and one where there is none."""
    if topology.gpus_per_node is not None:
        return topology.gpus_per_node or 1
    import torch  # noqa: PLC0415 - seconds that a launcher who names the number need not pay

    return torch.cuda.device_count() or 1


def _is_running(agent: subprocess.Popen[bytes]) -> bool:
    try:
        agent.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _count_lefts(config: Config) -> int:
    if not config.spool:
        return 0
    spooled = read_spool(spool_file(config.spool, config.attempt))
    return sum(report.kind is ReportKind.WORKER_LEFT for report, _ in spooled)


def _last_step(config: Config) -> int:
    """The last step that anybody reported; 0 if nobody reported any."""
    assert config.spool
    spooled = read_spool(spool_file(config.spool, config.attempt))
    steps = [report.body["step"] for report, _ in spooled if "step" in report.body]
    return int(str(steps[-1])) if steps else 0
