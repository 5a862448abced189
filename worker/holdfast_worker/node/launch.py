"""Launcher of one node (`holdfast-worker run`): torchrun, notices, reports and exit code.

A launcher that recovers by itself distinguishes a preemption from a failure by the presence of the node. A wrapper that has
exited on a notice therefore lingers until the node is terminated. A replaced wrapper would be restarted and fence out its
successor, so it lingers also.
"""

from __future__ import annotations

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
from typing import Final

from holdfast_worker.clock import now
from holdfast_worker.config import (
    DELIVERED_BY_WRAPPER,
    HOLDER,
    JOINS,
    NODE_RANKS,
    WRAPPER,
    Config,
    environment,
)
from holdfast_worker.console import log_info
from holdfast_worker.node.agent_process import AgentProcess, LogTail
from holdfast_worker.node.connectivity import start_connectivity_check
from holdfast_worker.node.exit_report import ExitReport
from holdfast_worker.node.fork_server import ENTRYPOINT, Spare
from holdfast_worker.node.hosted_nodes import HostedNodes
from holdfast_worker.node.rank_variables import (
    DEBUG_RANKS,
    DEBUG_VARIABLES,
    check_debug_topology,
    nccl_variables,
    torch_variables,
)
from holdfast_worker.node_memory.holder import MemoryHolder, open_holder
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.preemption.metadata_service import MetadataService
from holdfast_worker.preemption.notice_sources import MetadataWatcher, NoticeSources
from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.protocol.policies import RecoveryMode
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.storage import open_store
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.incarnation import Incarnation
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.store_relay import StoreRelay
from holdfast_worker.topology.nodes import NodeRanks, RankLayout, Topology
from holdfast_worker.topology.rendezvous import address_of_this_node, free_master_port
from holdfast_worker.watchdog.failure_cause import FailureCause, RestartPolicy, is_coordinated_exit
from holdfast_worker.watchdog.hosting import Hosting
from holdfast_worker.watchdog.node_channel import ChannelAddress
from holdfast_worker.watchdog.watchdog import Watchdog

LINGER_GRACE_S: Final = 180.0
"""Time to linger beyond the deadline of the notice.
A lower value exits before the launcher has noticed the loss of the node; a higher value pays for a node that was not preempted."""

UNKNOWN_DEADLINE_S: Final = 300.0
"""Time to linger after a notice without a deadline; most clouds give two minutes or less.
A lower value exits before the launcher has noticed the loss of the node; a higher value pays for a node that was not preempted."""


def linger_s(deadline: datetime | None, at: datetime) -> float:
    """Seconds to linger from `at` on.

    `deadline` is the termination of the node, None if unknown.
    """
    if deadline is None:
        return UNKNOWN_DEADLINE_S
    return max(0.0, (deadline - at).total_seconds()) + LINGER_GRACE_S


POLL_S: Final = 0.1
"""Interval of polls. A lower value burns a core; a higher value delays a notice."""

TORCHRUN_SIGNALS: Final = "SIGINT,SIGHUP,SIGQUIT"
"""Signals on which torchrun ends its ranks.
Its default SIGTERM is excluded: it is a notice, and the ranks save first."""


class NodeLauncher:
    """Runs the ranks of one node."""

    def __init__(
        self,
        topology: Topology,
        run_dir: RunDir,
        config: Config,
        notice_sources: NoticeSources,
        extra_variables: Mapping[str, str],
        *,
        successor: Spare | None = None,
    ) -> None:
        """`extra_variables` are added to the environment of the ranks.

        `successor`: see `AgentProcess`.
        """
        self._extra_variables = extra_variables
        self._topology = topology
        self._run_dir = run_dir
        self._config = config
        self._notice_sources = notice_sources
        self._agent_process = AgentProcess(is_warm=config.is_warm, successor=successor)
        self._exit_report = None if topology.node_rank else ExitReport(config, run_dir)
        self._hosting = Hosting(topology.nodes, config.min_nodes)
        self._hosted: HostedNodes | None = None
        self._holder: MemoryHolder | None = None

    def run(self, script: Sequence[str], layout: RankLayout | None) -> int:
        """Run `script` and return its exit code.

        `layout` is None for one rank per GPU on equal nodes.
        """
        self._run_dir.clear()
        at = self._topology
        memory = open_holder(
            at.node_rank,
            address_of_this_node(at.master_address),
            is_needed=self._config.keeps_snapshots,
        )
        with self._notice_sources.opened(), memory as holder:
            self._holder = holder
            code = self._run_script(script, layout)
            if (reason := self._notice_sources.superseded_by) is not None:
                log_info(f"this attempt was replaced or its job has ended: {reason}")
                code = Exit.FENCED
            if self._exit_report and code != Exit.FENCED:
                self._exit_report.write(code)
            if code in {Exit.PREEMPTED, Exit.FENCED}:
                self._linger()
        return Exit.FENCED if self._notice_sources.superseded_by is not None else code

    def _run_script(self, script: Sequence[str], layout: RankLayout | None) -> int:
        if not Path(script[0]).is_file():
            detail = f"there is no script {script[0]} in {Path.cwd()}"
            log_info(detail)
            with _log_write_errors():
                self._run_dir.record_exit(ExitReason("failed", Exit.USAGE, 0, detail))
            return Exit.USAGE
        at = self._topology
        layout = layout or RankLayout.from_counts([_default_ranks(at)], at.nodes)
        is_warm = self._config.is_warm and self._hosting.is_elastic
        self._hosted = HostedNodes(self._run_dir, script, layout, is_warm=is_warm)
        code: int = Exit.FAILED
        try:
            code = self._run_ranks(script, layout)
        finally:
            self._hosted.close(waits=code in {Exit.DONE, Exit.PREEMPTED})
        return code

    def _run_ranks(self, script: Sequence[str], layout: RankLayout) -> int:
        """Run the ranks of this node, again after failures that permit it; return their exit code."""
        ranks = layout.ranks_of_node(self._topology.node_rank)
        start_connectivity_check(self._topology)
        policy = RestartPolicy(self._config.max_restarts)
        variables = {JOINS: "1"} if self._config.node_start else {}
        restarts = None if variables else 0
        while True:
            watchdog = Watchdog(
                self._run_dir,
                ranks,
                ChannelAddress.of_node(self._topology, self._config, restarts),
                self._config.max_stall,
                world_size=layout.world_size if self._replaces_ranks else None,
                replaces_nodes=self._config.node_start is not None,
                hosting=self._hosting,
            )
            if self._holder:
                address = self._holder.renew().dump()
                self._extra_variables = {**self._extra_variables, HOLDER: address}
            with watchdog.opened():
                code = self._run_ranks_once(script, layout, watchdog, variables)
                while watchdog.replaces_ranks:
                    with _log_write_errors():
                        self._run_dir.clear_ranks()
                    watchdog.replace_ranks()
                    code = self._run_ranks_once(script, layout, watchdog, {JOINS: "1"})
                may_restart = self._may_restart(watchdog.cause, policy)
                if not watchdog.cause or not watchdog.agree_on_restart(may_restart=may_restart):
                    watchdog.announce_exit(code)
                    return code
            if not watchdog.cause.is_node_lost:
                policy.record(watchdog.cause)
            self._prepare_restart(watchdog.cause)
            variables, restarts = {}, watchdog.restarts + 1

    @property
    def _replaces_ranks(self) -> bool:
        """Whether lost ranks are replaced while those of other nodes wait in their processes."""
        return (
            self._config.recovery is RecoveryMode.IN_PROCESS
            and self._config.max_restarts > 0
            and self._topology.nodes > 1
        )

    @property
    def _is_replaced_alone(self) -> bool:
        """Whether a notice is for this node alone, for whose replacement the others wait."""
        return (
            self._replaces_ranks
            and self._config.node_start is not None
            and self._topology.node_rank > 0
            and self._run_dir.would_wait()
            # Written by the launcher if all nodes end.
            and not self._run_dir.is_noticed()
        )

    def _run_ranks_once(
        self,
        script: Sequence[str],
        layout: RankLayout,
        watchdog: Watchdog,
        variables: Mapping[str, str] = {},
    ) -> int:
        ranks = layout.ranks_of_node(self._topology.node_rank)
        echo = LogTail(self._run_dir.log_file(ranks[0]), sys.stdout.buffer)
        code = self._agent_process.run(
            [*self._options(len(ranks)), *script],
            {**self._environment(), **self._node_ranks(ranks, layout.world_size), **variables},
            lambda agent: self._wait(agent, echo, watchdog),
            lambda: not (watchdog.must_kill or self._run_dir.is_noticed()),
        )
        watchdog.determine_cause(self._exit_code(code))
        if watchdog.cause and not is_coordinated_exit(self._run_dir.exit_reason()):
            return watchdog.cause.exit_code
        return self._exit_code(code)

    def _may_restart(self, cause: FailureCause | None, policy: RestartPolicy) -> bool:
        """Whether this node can start its ranks again after `cause`.

        Not before the first step, as the same files would fail again, and not on a node that is about to be terminated.
        """
        return (
            cause is not None
            and (cause.is_node_lost or policy.allows(cause))
            # The others have trained before this node replaced one.
            and (self._run_dir.has_trained() or bool(self._config.node_start))
            and not self._run_dir.is_noticed()
            and not is_coordinated_exit(self._run_dir.exit_reason())
            and self._notice_sources.superseded_by is None
        )

    def _prepare_restart(self, cause: FailureCause) -> None:
        """Report the restart, and clear the files of the ranks that have ended."""
        where = "with a new node" if cause.is_node_lost else "on the same nodes"
        log_info(f"starting all ranks again {where}: {cause.detail}")
        if self._exit_report:
            self._exit_report.write_restart(cause)
        with _log_write_errors():
            self._run_dir.clear_ranks()
            self._run_dir.clear_group()
        with suppress(ValueError):  # torchrun reports a port that stays in use.
            port = free_master_port(
                self._topology.master_port,
                nodes=self._topology.nodes,
                node_rank=self._topology.node_rank,
            )
            self._topology = replace(self._topology, master_port=port)

    def _wait(self, agent: subprocess.Popen[bytes], echo: LogTail, watchdog: Watchdog) -> int:
        while _is_running(agent):
            echo.copy()
            self._poll(agent, watchdog)
        echo.copy()
        return agent.returncode

    def _poll(self, agent: subprocess.Popen[bytes], watchdog: Watchdog) -> None:
        """Forward notices and run the watchdog, periodically while the ranks run."""
        if self._notice_sources.superseded_by is None:
            self._forward_notices()
        else:
            watchdog.stop_all(
                FailureCause(
                    Exit.FENCED, 0, self._notice_sources.superseded_by, has_rank_died=False
                )
            )
        watchdog.poll()
        if self._hosted:
            self._hosted.update(self._hosting.hosted_by(self._topology.node_rank))
        if watchdog.must_kill or watchdog.replaces_ranks:
            self._kill(agent)

    def _node_ranks(self, ranks: range, world_size: int) -> dict[str, str]:
        """The place of this node's ranks among all, if its agent does not know it."""
        if not self._replaces_ranks:
            return {}
        at = self._topology
        node_ranks = NodeRanks(
            ranks.start,
            world_size,
            at.node_rank,
            at.nodes,
            at.master_address,
            at.master_port,
        )
        return {NODE_RANKS: node_ranks.dump()}

    def _options(self, ranks: int) -> list[str]:
        at = self._topology
        nodes = [
            f"--nnodes={at.nodes}",
            f"--node-rank={at.node_rank}",
            f"--master-addr={at.master_address}",
            f"--master-port={at.master_port}",
        ]
        return [
            # An agent that knows all nodes cannot start ranks again while those of other nodes run.
            *(["--standalone"] if self._replaces_ranks else nodes),
            f"--nproc-per-node={ranks}",
            "--max-restarts=0",
            f"--signals-to-handle={TORCHRUN_SIGNALS}",
            # Without the dashes, torchrun parses arguments of the script as abbreviations of its own options.
            *("-m", "--", ENTRYPOINT),
        ]

    def _environment(self) -> dict[str, str]:
        env = {
            **torch_variables(self._run_dir),
            **nccl_variables(self._run_dir),
            **environment(),
            **self._extra_variables,
            Env.RUN_DIR: str(self._run_dir.path),
            DELIVERED_BY_WRAPPER: "1",
            WRAPPER: str(os.getpid()),
        }
        if self._config.spool:
            env[Env.SPOOL] = str(self._config.spool)
        return env

    def _forward_notices(self) -> None:
        """Forward notices to the ranks, but not to torchrun, which would kill them soon after."""
        hinted_at = self._notice_sources.hint()
        if hinted_at:
            with _log_write_errors():
                self._run_dir.record_hint(hinted_at)
        notice = self._notice_sources.notice()
        if notice and self._is_replaced_alone:
            log_info("preemption notice: saving; other nodes will wait for a replacement")
            with _log_write_errors():
                self._run_dir.record_hint(now())
        elif notice:
            with _log_write_errors():
                self._run_dir.record_notice(notice.deadline)
            self._signal_ranks(signal.SIGTERM)

    def _kill(self, agent: subprocess.Popen[bytes]) -> None:
        """Kill all ranks and the agent; ranks that have not registered die with the agent."""
        self._signal_ranks(signal.SIGKILL)
        agent.kill()

    def _signal_ranks(self, number: signal.Signals) -> None:
        for pid in self._run_dir.registered_pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _exit_code(self, torchrun_code: int) -> int:
        """The exit code of the ranks; torchrun itself returns 1 for any failure."""
        left = self._run_dir.exit_reason()
        if left and left.exit_code not in (Exit.DONE, Exit.FAILED):
            return left.exit_code
        if torchrun_code == 0:
            return Exit.DONE
        if self._run_dir.is_noticed() and not self._run_dir.registered_pids():
            return Exit.PREEMPTED
        failure = self._run_dir.failure()
        if failure:
            return failure.exit_code
        return 128 - torchrun_code if torchrun_code < 0 else torchrun_code

    def _linger(self) -> None:
        """Wait for the end of the node, if the launcher would take an earlier exit for a failure."""
        if (
            self._config.is_numbered
            or not self._config.is_managed
            or self._notice_sources.is_signalled
        ):
            return
        for_s = linger_s(self._run_dir.deadline(), now())
        log_info(
            f"waiting up to {for_s:.0f} s for the termination of the node, "
            "as the launcher would treat an earlier exit as a failure"
        )
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s and not self._notice_sources.is_signalled:
            time.sleep(POLL_S)


def launch(
    script: Sequence[str],
    ranks: Sequence[int] | None,
    metadata: MetadataService = MetadataService(),
    *,
    debug: bool = False,
    successor: Spare | None = None,
) -> int:
    """Run `script` on this node and return its exit code.

    `ranks` has one number of processes for each node, or one for all; None: one per GPU. `metadata` is polled for notices if the
    launcher recovers the job by itself and does not forward them. `debug` adds debug logs, and runs two ranks by default. `successor`: see
    `AgentProcess`.
    """
    try:
        config = Config.of_node(environment())
        if config.hosted_start:
            die_with_parent(config.wrapper)
        topology = Topology.read(environment())
        if debug:
            check_debug_topology(topology)
            config = replace(config, max_restarts=0)
            ranks = ranks or [DEBUG_RANKS]
        layout = RankLayout.from_counts(ranks, topology.nodes) if ranks else None
        port = free_master_port(
            topology.master_port, nodes=topology.nodes, node_rank=topology.node_rank
        )
        topology = replace(topology, master_port=port)
    except ValueError as error:
        log_info(str(error))
        return Exit.USAGE
    incarnation = None if config.is_numbered else _create_incarnation(config)
    if incarnation:
        run_dir = incarnation.run_dir(topology.node_rank)
        config = replace(config, run_dir=run_dir, spool=incarnation.spool)
    path = config.run_dir or Path(tempfile.mkdtemp(prefix="holdfast-run-"))
    watcher = MetadataWatcher(metadata, config.cloud) if incarnation else None
    sources = NoticeSources(_open_report_sender(config, topology, incarnation), watcher)
    extra = DEBUG_VARIABLES if debug else {}
    launcher = NodeLauncher(topology, RunDir(path), config, sources, extra, successor=successor)
    return launcher.run(script, layout)


def _create_incarnation(config: Config) -> Incarnation:
    """Create the incarnation of this placement in the home or else the temporary directory."""
    try:
        return Incarnation.create(config)
    except OSError as error:
        fallback = Path(tempfile.gettempdir())
        log_info(f"the home directory cannot be used; using {fallback} instead: {error}")
        return Incarnation.create(replace(config, home=fallback))


def _open_report_sender(
    config: Config, topology: Topology, incarnation: Incarnation | None
) -> ReportSender | None:
    """The report sender on node 0; None on other nodes and without a service."""
    if topology.node_rank or not (config.url and config.spool):
        return None
    name = incarnation.name if incarnation else None
    client = ServiceClient(config.url, config.job, config.token, name)
    relay = _open_store_relay(config, config.spool, incarnation)
    return ReportSender(client, config.spool, config.attempt, incarnation, relay=relay)


def _open_store_relay(
    config: Config, spool: Path, incarnation: Incarnation | None
) -> StoreRelay | None:
    """The relay for undelivered reports; None without a store."""
    if not config.store:
        return None
    return StoreRelay(
        partial(open_store, config.store, config.job), spool, config.attempt, incarnation
    )


@contextmanager
def _log_write_errors() -> Iterator[None]:
    """Log write errors and continue: a full disk must not lose work that is saved elsewhere."""
    try:
        yield
    except OSError as error:
        log_info(f"the run directory cannot be written: {error}")


def _default_ranks(topology: Topology) -> int:
    """One rank per GPU of this node, or one without GPUs."""
    if topology.gpus_per_node is not None:
        return topology.gpus_per_node or 1
    import torch  # noqa: PLC0415 - takes seconds, and only without a given number

    return torch.cuda.device_count() or 1


def _is_running(agent: subprocess.Popen[bytes]) -> bool:
    try:
        agent.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False
