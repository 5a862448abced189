"""`--debug`: a run that is small, and that says what goes on between its ranks. Once it works, make it larger.

An echo: what a rank writes to its log appears in the output of its node too.

How long a wrapper stays that left on notice, or was replaced, where its end would be taken for that of the job. Pure.

A launcher that recovers by itself tells a node that was taken from a program that failed by looking whether the node is
still there. So whoever left early waits for the node to go. Whoever was replaced would be started again, and fence its
successor in turn.

One node of a run: torchrun under it, notices to its ranks, reports to the service, and the true exit code.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from holdfast_worker.clock import now
from holdfast_worker.config import COURIER, WRAPPER, Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.node.connectivity import watch_for_reach
from holdfast_worker.node.exit_report import ExitReport
from holdfast_worker.preemption.metadata_service import Metadata
from holdfast_worker.preemption.notice_sources import MetadataWatcher, NoticeSources
from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.storage import open_store
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.incarnation import Incarnation
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.store_relay import StoreRelay
from holdfast_worker.topology.nodes import RankLayout, Topology
from holdfast_worker.watchdog.failure_cause import FailureCause, is_agreed
from holdfast_worker.watchdog.node_channel import PORTS, ChannelAddress
from holdfast_worker.watchdog.watchdog import Watchdog

RANKS: Final = 2
"""The fewest that have something to say to each other."""

VARIABLES: Final[Mapping[str, str]] = {
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "NCCL_DEBUG": "INFO",
    Env.SYNC_SAVES.value: "1",
}
"""What the ranks find in their environment: torch checks that all ranks call the same collectives, NCCL says by which way it goes,
and training waits for its checkpoints, so that an error comes where its cause is."""


def check(topology: Topology) -> None:
    """Nothing, for a single node.

    Raises:
        ValueError: there are several.
    """
    if topology.nodes > 1:
        raise ValueError(
            f"--debug is for one node, and this run has {topology.nodes}: start it on one, or leave --debug out"
        )


class LogTail:
    """The growth of a file, from now on, copied to a stream."""

    def __init__(self, file: Path, stream: BinaryIO) -> None:
        self._file = file
        self._stream = stream
        self._copied = file.stat().st_size if file.exists() else 0

    def copy(self) -> None:
        """Copy what was written since the last time."""
        if not self._file.exists():
            return
        with self._file.open("rb") as log:
            log.seek(self._copied)
            fresh = log.read()
        self._copied += len(fresh)
        # Nobody may be listening any more, or have room to write it down; that is no reason to end a training.
        with suppress(OSError):
            self._stream.write(fresh)
            self._stream.flush()


GRACE_S: Final = 180.0
"""Beyond the deadline of the notice. Longer pays for a node that was not taken after all, shorter ends before the launcher
has seen that it is gone."""

UNKNOWN_S: Final = 300.0
"""After a notice without a deadline; most clouds give two minutes or less. The same prices."""


def linger_s(deadline: datetime | None, at: datetime) -> float:
    """Seconds to stay from `at` on. `deadline` is when the node goes, None if nobody said."""
    if deadline is None:
        return UNKNOWN_S
    return max(0.0, (deadline - at).total_seconds()) + GRACE_S


LOOK_S: Final = 0.1
"""How often the node is looked after. Longer delays a notice, shorter burns a core."""

SIGNALS: Final = "SIGINT,SIGHUP,SIGQUIT"
"""On which torchrun ends its ranks. Not on SIGTERM, as it would by itself: that is a notice, and they save first."""


class Node:
    """A node while its ranks run."""

    def __init__(
        self,
        topology: Topology,
        run_dir: RunDir,
        config: Config,
        outside: NoticeSources,
        also: Mapping[str, str],
    ) -> None:
        """`also` is what the ranks find in their environment over what this process has."""
        self._also = also
        self._topology = topology
        self._run_dir = run_dir
        self._config = config
        self._outside = outside
        self._epitaph = None if topology.node_rank else ExitReport(config, run_dir)

    def run(self, script: Sequence[str], shape: RankLayout | None) -> int:
        """The exit code of a whole run of `script`, as the ranks meant it. `shape` is None for one per GPU, on nodes alike."""
        self._run_dir.clear()
        with self._outside.opened():
            code = self._run_script(script, shape)
            if (why := self._outside.replaced) is not None:
                log_info(f"the service has no use for this placement any more: {why}")
                code = Exit.FENCED
            if self._epitaph and code != Exit.FENCED:
                self._epitaph.write(code)
            if code in {Exit.PREEMPTED, Exit.FENCED}:
                self._hold()
        return Exit.FENCED if self._outside.replaced is not None else code

    def _run_script(self, script: Sequence[str], shape: RankLayout | None) -> int:
        if not Path(script[0]).is_file():
            words = f"there is no script {script[0]} in {Path.cwd()}"
            log_info(words)
            with _going_on():
                self._run_dir.leave(ExitReason("failed", Exit.USAGE, 0, words))
            return Exit.USAGE
        at = self._topology
        shape = shape or RankLayout.of([_ranks_of(at)], at.nodes)
        return self._run_ranks(script, shape.of_node(at.node_rank))

    def _run_ranks(self, script: Sequence[str], ranks: range) -> int:
        echo = LogTail(self._run_dir.log(ranks[0]), sys.stdout.buffer)
        watchdog = Watchdog(
            self._run_dir,
            ranks,
            _meeting(self._topology, self._config),
            self._config.max_stall,
        )
        watch_for_reach(self._topology)
        with watchdog.opened():
            agent = subprocess.Popen(
                self._command(script, len(ranks)), env=self._environment(), start_new_session=True
            )
            while _is_running(agent):
                echo.copy()
                self._look_after(agent, watchdog)
            echo.copy()
            watchdog.conclude(self._exit_code(agent.returncode))
        if watchdog.cause and not is_agreed(self._run_dir.left()):
            return watchdog.cause.exit_code
        return self._exit_code(agent.returncode)

    def _look_after(self, agent: subprocess.Popen[bytes], watchdog: Watchdog) -> None:
        """What there is to be done now and then while the ranks run."""
        if self._outside.replaced is None:
            self._pass_on()
        else:
            watchdog.end(FailureCause(Exit.FENCED, 0, self._outside.replaced, is_death=False))
        watchdog.look()
        if watchdog.is_to_kill:
            self._kill(agent)

    def _command(self, script: Sequence[str], ranks: int) -> list[str]:
        at = self._topology
        return [
            # -P: a module beside the script must not stand in for one that torchrun needs.
            *(sys.executable, "-P", "-m", "holdfast_worker.node.torchrun_agent"),
            f"--nnodes={at.nodes}",
            f"--node-rank={at.node_rank}",
            f"--nproc-per-node={ranks}",
            f"--master-addr={at.master_address}",
            f"--master-port={at.master_port}",
            "--max-restarts=0",
            f"--signals-to-handle={SIGNALS}",
            # Without the dashes, torchrun takes what the script is given for abbreviations of its own options.
            *("-m", "--", "holdfast_worker.node.rank_entrypoint"),
            *script,
        ]

    def _environment(self) -> dict[str, str]:
        env = {
            **_of_torch(self._run_dir),
            **_of_nccl(self._run_dir),
            **environment(),
            **self._also,
            Env.RUN_DIR: str(self._run_dir.path),
            COURIER: "1",
            WRAPPER: str(os.getpid()),
        }
        if self._config.spool:
            env[Env.SPOOL] = str(self._config.spool)
        return env

    def _pass_on(self) -> None:
        """Hand on to the ranks what was heard. They are told, and not torchrun: that would kill them soon after."""
        hinted_at = self._outside.hint()
        if hinted_at:
            with _going_on():
                self._run_dir.hint(hinted_at)
        notice = self._outside.notice()
        if notice:
            with _going_on():
                self._run_dir.notice(notice.deadline)
            self._signal_ranks(signal.SIGTERM)

    def _kill(self, agent: subprocess.Popen[bytes]) -> None:
        """End everything at once; ranks that have not registered yet are tied to the agent."""
        self._signal_ranks(signal.SIGKILL)
        agent.kill()

    def _signal_ranks(self, which: signal.Signals) -> None:
        for pid in self._run_dir.registered().values():
            with suppress(ProcessLookupError):
                os.kill(pid, which)

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

    def _hold(self) -> None:
        """Stay until the node is taken, where our end would be taken for that of the program: see `hold`."""
        if self._config.is_numbered or not self._config.is_managed or self._outside.is_signalled:
            return
        for_s = linger_s(self._run_dir.deadline(), now())
        log_info(
            f"waiting up to {for_s:.0f} s for the node to be taken, "
            "as an end before that would look like a failure"
        )
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s and not self._outside.is_signalled:
            time.sleep(LOOK_S)


def launch(
    script: Sequence[str],
    ranks: Sequence[int] | None,
    metadata: Metadata = Metadata(),
    *,
    debug: bool = False,
) -> int:
    """The exit code of `script`, run on this node with as many processes as `ranks` says for it: one number for each node, or
    one for all. None means as many as there are GPUs.

    `metadata` is asked for notices where the launcher recovers the job by itself, and so does not pass them on. `debug` has the
    ranks say more, and be two unless `ranks` says otherwise.
    """
    try:
        config = Config.of_node(environment())
        topology = Topology.read(environment())
        if debug:
            check(topology)
            ranks = ranks or [RANKS]
        shape = RankLayout.of(ranks, topology.nodes) if ranks else None
        topology = topology.with_a_free_port()
    except ValueError as error:
        log_info(str(error))
        return Exit.USAGE
    incarnation = None if config.is_numbered else _settle(config)
    if incarnation:
        run_dir = incarnation.run_dir(topology.node_rank)
        config = replace(config, run_dir=run_dir, spool=incarnation.spool)
    path = config.run_dir or Path(tempfile.mkdtemp(prefix="holdfast-run-"))
    watcher = MetadataWatcher(metadata, config.cloud) if incarnation else None
    outside = NoticeSources(_courier(config, topology, incarnation), watcher)
    also = VARIABLES if debug else {}
    return Node(topology, RunDir(path), config, outside, also).run(script, shape)


def _settle(config: Config) -> Incarnation:
    """What this placement is, in the home directory, or for want of one where everybody may write."""
    try:
        return Incarnation.create(config)
    except OSError as error:
        elsewhere = Path(tempfile.gettempdir())
        log_info(f"the home directory cannot be used, {elsewhere} is taken instead: {error}")
        return Incarnation.create(replace(config, home=elsewhere))


def _courier(
    config: Config, topology: Topology, incarnation: Incarnation | None
) -> ReportSender | None:
    """Who delivers the reports; None on all nodes but the first, which alone has any, and without a service."""
    if topology.node_rank or not (config.url and config.spool):
        return None
    name = incarnation.name if incarnation else None
    doorstep = ServiceClient(config.url, config.job, config.token, name)
    postbox = _postbox(config, config.spool, incarnation)
    return ReportSender(doorstep, config.spool, config.attempt, incarnation, postbox=postbox)


def _postbox(config: Config, spool: Path, incarnation: Incarnation | None) -> StoreRelay | None:
    """Where reports go that cannot be delivered; None without a store."""
    if not config.store:
        return None
    return StoreRelay(
        partial(open_store, config.store, config.job), spool, config.attempt, incarnation
    )


def _of_torch(run_dir: RunDir) -> dict[str, str]:
    """What torch writes down by itself, as when a collective took too long, is to be found with the rest."""
    if any(
        name in environment()
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    ):
        return {}
    file = str(run_dir.hang / "torch_rank_")
    return {"TORCH_FR_DUMP_TEMP_FILE": file, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def _of_nccl(run_dir: RunDir) -> dict[str, str]:
    """NCCL writes how it connects ranks, beside their logs and as it starts alone; unless somebody has told it what to say."""
    if any(name in environment() for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE")):
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH",
        "NCCL_DEBUG_FILE": str(run_dir.nccl / "%p.log"),
    }


def _meeting(topology: Topology, config: Config) -> ChannelAddress:
    """Where the wrappers of a run meet: beside the ranks. The token keeps away who merely finds the port."""
    at = topology
    told = (config.job, config.attempt, config.token, at.master_address, at.master_port, at.nodes)
    name = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    above = at.master_port + PORTS < 1 << 16
    ports = [at.master_port + (1 if above else -1) * (i + 1) for i in range(PORTS)]
    return ChannelAddress(at.node_rank, at.nodes, at.master_address, ports, name)


@contextmanager
def _going_on() -> Iterator[None]:
    """What cannot be written is said. A full disk is no reason to lose the work, which is saved elsewhere."""
    try:
        yield
    except OSError as error:
        log_info(f"the run directory cannot be written: {error}")


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
