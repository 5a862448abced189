"""Launcher of one node (`holdfast-worker run`): torchrun, notices, reports and exit code.

A launcher that recovers by itself distinguishes a preemption from a failure by the presence of the node. A wrapper that has
exited on a notice therefore lingers until the node is terminated. A replaced wrapper would be restarted and fence out its
successor, so it lingers also.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from holdfast_worker.clock import now
from holdfast_worker.config import Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.node.agent_process import AgentProcess
from holdfast_worker.node.exit_report import ExitReport
from holdfast_worker.node.fork_server import Spare
from holdfast_worker.node.group_rendezvous import GroupRendezvous
from holdfast_worker.node.node_commands import open_commands
from holdfast_worker.node.node_run import (
    POLL_S,
    NodeRun,
    is_asked_to_leave,
    log_write_errors,
)
from holdfast_worker.node.open_trackers import end_open_tracker
from holdfast_worker.node.output_collection import OutputCollector
from holdfast_worker.node.output_nodes import CollectingNode, run_identity
from holdfast_worker.node.rank_variables import (
    DEBUG_RANKS,
    DEBUG_VARIABLES,
    check_debug_topology,
)
from holdfast_worker.node_memory.holder import MemoryHolder, open_holder
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.preemption.metadata_service import MetadataService
from holdfast_worker.preemption.notice_sources import MetadataWatcher, NoticeSources
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.storage import open_store
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.incarnation import Incarnation
from holdfast_worker.telemetry.nvml import open_gpus
from holdfast_worker.telemetry.service_client import ServiceClient, Superseded
from holdfast_worker.telemetry.store_relay import StoreRelay
from holdfast_worker.topology.nodes import RankLayout, Topology
from holdfast_worker.topology.rendezvous import address_of_this_node, free_master_port
from holdfast_worker.topology.slurm import host_name
from holdfast_worker.watchdog.gpu_monitor import GpuMonitor

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
        rendezvous: GroupRendezvous | None = None,
        successor: Spare | None = None,
    ) -> None:
        """`extra_variables` are added to the environment of the ranks.

        `rendezvous`: finds node 0; None if it is known. `successor`: see `AgentProcess`.
        """
        self._rendezvous = rendezvous
        self._extra_variables = extra_variables
        self._topology = topology
        self._run_dir = run_dir
        self._config = config
        self._notice_sources = notice_sources
        self._agent_process = AgentProcess(is_warm=config.is_warm, successor=successor)
        self._exit_report = None if topology.node_rank else ExitReport(config, run_dir)
        self._holder: MemoryHolder | None = None
        self._leader = topology.leader
        self._hosted: frozenset[int] = frozenset()
        env = environment()
        self._gpus = GpuMonitor(
            topology.node_rank, run_dir, host_name(env), partial(open_gpus, env)
        )

    def run(self, script: Sequence[str], layout: RankLayout | None) -> int:
        """Run `script` and return its exit code.

        `layout` is None for one rank per GPU on equal nodes.
        """
        self._run_dir.clear()
        at = self._topology
        # Nodes of several groups do not know yet at which address others reach them.
        host = "" if at.group else address_of_this_node(at.master_address)
        memory = open_holder(at.node_rank, host, is_needed=self._config.keeps_snapshots)
        commands = open_commands(self._config, at.node_rank)
        with self._notice_sources.opened(), memory as holder, commands:
            self._holder = holder
            if not self._config.hosted_start:  # The wrapper of this node itself reads its GPUs.
                self._gpus.start()
            code = self._run_script(script, layout)
            if (reason := self._notice_sources.superseded_by) is not None:
                log_info(f"this attempt was replaced or its job has ended: {reason}")
                code = Exit.FENCED
            if self._exit_report and code != Exit.FENCED:
                self._gpus.publish(is_last=True)
                self._exit_report.write(code)
                end_open_tracker(self._run_dir, self._exit_report.exit_reason(code))
            # The node that hosts another one has its files, as both use the same directory.
            is_own = not self._config.hosted_start
            if is_own and code not in {Exit.PREEMPTED, Exit.FENCED, Exit.USAGE}:
                self._collect_outputs(code)
            if code in {Exit.PREEMPTED, Exit.FENCED}:
                self._linger()
            elif code not in {Exit.DONE, Exit.USAGE}:
                self._keep_failed()
        return Exit.FENCED if self._notice_sources.superseded_by is not None else code

    def _run_script(self, script: Sequence[str], layout: RankLayout | None) -> int:
        if not Path(script[0]).is_file():
            detail = f"there is no script {script[0]} in {Path.cwd()}"
            log_info(detail)
            with log_write_errors():
                self._run_dir.record_exit(ExitReason("failed", Exit.USAGE, 0, detail))
            return Exit.USAGE
        at = self._topology
        layout = layout or RankLayout.from_counts([_default_ranks(at)], at.nodes)
        if self._rendezvous is None:
            return self._run_to_end(self._node_run(at, self._config), script, layout)
        return self._run_with_leaders(self._rendezvous, script, layout)

    def _run_to_end(self, run: NodeRun, script: Sequence[str], layout: RankLayout) -> int:
        code = run.run(script, layout)
        self._hosted = run.hosted_nodes
        return code

    def _node_run(self, topology: Topology, config: Config) -> NodeRun:
        return NodeRun(
            topology,
            self._run_dir,
            config,
            self._notice_sources,
            extra_variables=self._extra_variables,
            agent_process=self._agent_process,
            exit_report=self._exit_report,
            holder=self._holder,
            gpus=self._gpus,
        )

    def _run_with_leaders(
        self, rendezvous: GroupRendezvous, script: Sequence[str], layout: RankLayout
    ) -> int:
        """Run the ranks with node 0 of another group, and after its loss with the next one."""
        run = self._node_run(self._topology, self._config)
        code: int = Exit.FENCED
        while True:
            try:
                found = rendezvous.meet(run.is_leaving)
            except Superseded as answer:
                log_info(f"this node is not needed any more: {answer}")
                return code if code == Exit.PREEMPTED else Exit.FENCED
            if found is None:
                return Exit.PREEMPTED
            leader, start = found
            self._leader = leader.incarnation
            config = replace(self._config, node_start=start)
            run = self._node_run(self._topology.with_leader(leader), config)
            code = self._run_to_end(run, script, layout)
            if not run.awaits_leader:
                return code
            log_info("this node waits for the next node 0, and starts its ranks again there")
            self._run_dir.clear()
            rendezvous.joined += run.has_met

    def _collect_outputs(self, code: int) -> None:
        """Send the output files of this node to the store, and wait for those of the others."""
        place = CollectingNode(
            node=self._topology.node_rank,
            nodes=self._topology.nodes,
            run=run_identity(self._config.placement, self._leader, environment()),
            hosted=self._hosted,
        )
        collector = OutputCollector(
            config=self._config, run_dir=self._run_dir, place=place, is_leaving=self._is_leaving
        )
        collector.collect(code)

    def _keep_failed(self) -> None:
        """Keep this node for commands of users, if the job file asks for it.

        A notice ends that, also one of a launcher that cancels the job.
        """
        for_s = self._config.keep_failed_s
        if not for_s or self._config.hosted_start or self._is_leaving():
            return
        until, until_s = now() + timedelta(seconds=for_s), time.monotonic() + for_s
        with log_write_errors():
            if self._exit_report:
                self._exit_report.write_kept(until)
        log_info(
            f"the program has failed; this node is kept and billed until {until:%H:%M:%S} UTC for holdfast exec, "
            "or until the job is cancelled"
        )
        while time.monotonic() < until_s and not self._is_leaving():
            time.sleep(POLL_S)

    def _is_leaving(self) -> bool:
        return is_asked_to_leave(self._notice_sources, self._run_dir)

    def _linger(self) -> None:
        """Wait for the end of the node, if the launcher would take an earlier exit for a failure."""
        if (
            self._config.is_numbered
            or self._config.hosted_start
            or not self._config.is_managed
            or self._notice_sources.is_signalled
        ):
            return
        for_s = linger_s(self._run_dir.deadline(), now())
        if (end_s := self._notice_sources.drill.end_s) is not None:
            for_s = max(0.0, end_s - time.monotonic())  # No launcher terminates the node.
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
        if topology.group and config.hosted_leader:
            topology = topology.with_leader(config.hosted_leader)
        # Other groups ask for the port, so that node 0 can choose another one.
        nodes = 1 if topology.group else topology.nodes
        port = topology.master_port
        if not topology.node_rank:
            port = free_master_port(port, nodes=nodes, node_rank=0)
        topology = replace(topology, master_port=port)
    except ValueError as error:
        log_info(str(error))
        return Exit.USAGE
    is_placed = config.is_numbered or config.hosted_start
    incarnation = None if is_placed else _create_incarnation(config)
    if incarnation:
        run_dir = incarnation.run_dir(topology.node_rank)
        config = replace(config, run_dir=run_dir, spool=incarnation.spool)
    path = config.run_dir or Path(tempfile.mkdtemp(prefix="holdfast-run-"))
    watcher = MetadataWatcher(metadata, config.cloud) if incarnation else None
    sources = NoticeSources(_open_report_sender(config, topology, incarnation), watcher)
    extra = DEBUG_VARIABLES if debug else {}
    rendezvous = None
    if topology.group and not topology.leader:
        rendezvous = GroupRendezvous(topology, topology.group, config)
    launcher = NodeLauncher(
        topology,
        RunDir(path),
        config,
        sources,
        extra,
        rendezvous=rendezvous,
        successor=successor,
    )
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
    run_dir = RunDir(config.run_dir) if config.run_dir else None
    return ReportSender(
        client, config.spool, config.attempt, incarnation, relay=relay, run_dir=run_dir
    )


def _open_store_relay(
    config: Config, spool: Path, incarnation: Incarnation | None
) -> StoreRelay | None:
    """The relay for undelivered reports; None without a store."""
    if not config.store:
        return None
    return StoreRelay(
        partial(open_store, config.store, config.job, environment()),
        spool,
        config.attempt,
        incarnation,
    )


def _default_ranks(topology: Topology) -> int:
    """One rank per GPU of this node, or one without GPUs."""
    if topology.gpus_per_node is not None:
        return topology.gpus_per_node or 1
    import torch  # noqa: PLC0415 - takes seconds, and only without a given number

    return torch.cuda.device_count() or 1
