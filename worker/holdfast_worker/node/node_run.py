"""The ranks of one node, from their start until they have ended for good.

They start again after failures that permit it, and while nodes of other groups were lost (`watchdog.watchdog`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
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
from holdfast_worker.node.fork_server import ENTRYPOINT
from holdfast_worker.node.hosted_nodes import HostedNodes
from holdfast_worker.node.rank_variables import nccl_variables, torch_variables
from holdfast_worker.node_memory.holder import MemoryHolder
from holdfast_worker.preemption.notice_sources import NoticeSources
from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.protocol.policies import RecoveryMode
from holdfast_worker.run_dir import RunDir
from holdfast_worker.topology.nodes import NodeRanks, RankLayout, Topology
from holdfast_worker.topology.rendezvous import address_of_this_node, free_master_port
from holdfast_worker.watchdog.assembly import Assembly
from holdfast_worker.watchdog.failure_cause import FailureCause, RestartPolicy, is_coordinated_exit
from holdfast_worker.watchdog.gpu_monitor import GpuMonitor
from holdfast_worker.watchdog.hosting import Hosting
from holdfast_worker.watchdog.node_channel import ChannelAddress
from holdfast_worker.watchdog.node_drills import NodeDrills
from holdfast_worker.watchdog.watchdog import Watchdog

POLL_S: Final = 0.1
"""Interval of polls. A lower value burns a core; a higher value delays a notice."""

TORCHRUN_SIGNALS: Final = "SIGINT,SIGHUP,SIGQUIT"
"""Signals on which torchrun ends its ranks.
Its default SIGTERM is excluded: it is a notice, and the ranks save first."""


@contextmanager
def log_write_errors() -> Iterator[None]:
    """Log write errors and continue: a full disk must not lose work that is saved elsewhere."""
    try:
        yield
    except OSError as error:
        log_info(f"the run directory cannot be written: {error}")


def is_asked_to_leave(sources: NoticeSources, run_dir: RunDir) -> bool:
    """Whether a node has to end; a new notice is recorded."""
    sources.drill.end_if_due()
    if notice := sources.notice():
        with log_write_errors():
            run_dir.record_notice(notice.deadline)
    return run_dir.is_noticed() or sources.is_signalled or sources.superseded_by is not None


class NodeRun:
    """The ranks of one node, as long as they have the same leader."""

    def __init__(
        self,
        topology: Topology,
        run_dir: RunDir,
        config: Config,
        notice_sources: NoticeSources,
        *,
        extra_variables: Mapping[str, str],
        agent_process: AgentProcess,
        exit_report: ExitReport | None,
        holder: MemoryHolder | None,
        gpus: GpuMonitor,
    ) -> None:
        """`exit_report`: on node 0. `extra_variables` are added to the environment of the ranks.

        `holder`: this node's memory for snapshots, which outlives the ranks; None without any.
        """
        self._extra_variables = extra_variables
        self._holder = holder
        self._gpus = gpus
        self._topology = topology
        self._run_dir = run_dir
        self._config = config
        self._notice_sources = notice_sources
        self._agent_process = agent_process
        self._exit_report = exit_report
        self._hosting = Hosting(topology.nodes, config.min_nodes)
        self._hosted: HostedNodes | None = None
        self._newest_starts: dict[int, int] = {}
        start = ChannelAddress.of_node(topology, config, restarts=None).start
        self._drills = NodeDrills(topology.node_rank, start, self._newest_starts)
        self.hosted_nodes: frozenset[int] = frozenset()
        """The missing nodes whose ranks ran here until the end."""
        self.awaits_leader = False
        """Whether the ranks start again with the next leader, as this node stands."""
        self.has_met = False
        """Whether this node was connected to the leader."""

    def run(self, script: Sequence[str], layout: RankLayout) -> int:
        """Run `script`, and return the exit code of the ranks."""
        is_warm = self._config.is_warm and self._hosting.is_elastic
        leader = self._topology.leader_address if self._topology.group else None
        self._hosted = HostedNodes(self._run_dir, script, layout, leader, is_warm=is_warm)
        code: int = Exit.FAILED
        try:
            code = self._run_ranks(script, layout)
        finally:
            self.hosted_nodes = self._hosted.nodes
            self._hosted.close(waits=code in {Exit.DONE, Exit.PREEMPTED})
        return code

    def _run_ranks(self, script: Sequence[str], layout: RankLayout) -> int:
        """Run the ranks of this node, again after failures that permit it; return their exit code."""
        is_grouped = self._topology.group is not None
        policy = RestartPolicy(self._config.max_restarts)
        variables = {JOINS: "1"} if self._config.node_start and not is_grouped else {}
        # Only node 0 counts them. A node that comes later learns the number from it.
        is_late = bool(self._topology.node_rank) if is_grouped else bool(variables)
        restarts = None if is_late else 0
        if not variables and not is_grouped:
            start_connectivity_check(self._topology)
        while True:
            watchdog = self._watchdog(layout, restarts)
            self._renew_holder()
            with watchdog.opened():
                if is_grouped:
                    assembly = watchdog.assemble(partial(self._is_leaving, watchdog))
                    self.has_met = self.has_met or watchdog.has_met_leader
                    if assembly in {Assembly.LEAVES, Assembly.HAS_NO_LEADER}:
                        watchdog.announce_exit(Exit.PREEMPTED)
                        self.awaits_leader = assembly is Assembly.HAS_NO_LEADER
                        return Exit.PREEMPTED
                    variables = {JOINS: "1"} if assembly is Assembly.JOINS else {}
                code = int(Exit.FAILED)
                if not watchdog.cause:
                    code = self._run_replaceable_ranks(script, layout, watchdog, variables)
                cause = self._cause(watchdog)
                may_restart = self._may_restart(cause, policy)
                if not cause or not watchdog.agree_on_restart(may_restart=may_restart):
                    watchdog.announce_exit(code)
                    self.awaits_leader = self._is_left_by_leader(watchdog, code)
                    return code
            if not cause.is_node_lost:
                policy.record(cause)
            self._hosting.retain(watchdog.standing_nodes)
            self._prepare_restart(cause)
            variables, restarts = {}, watchdog.restarts + 1

    def _renew_holder(self) -> None:
        """Give the ranks that start the address of this node's memory, and deny it to earlier ones."""
        if self._holder:
            host = address_of_this_node(self._topology.master_address)
            address = self._holder.renew(host).dump()
            self._extra_variables = {**self._extra_variables, HOLDER: address}

    def _watchdog(self, layout: RankLayout, restarts: int | None) -> Watchdog:
        """The watchdog of ranks that start; `restarts`: see `ChannelAddress`."""
        return Watchdog(
            self._run_dir,
            layout.ranks_of_node(self._topology.node_rank),
            ChannelAddress.of_node(self._topology, self._config, restarts),
            self._config.max_stall,
            world_size=layout.world_size if self._replaces_ranks else None,
            replaces_nodes=self._config.node_start is not None,
            is_grouped=self._topology.group is not None,
            hosting=self._hosting,
            newest_starts=self._newest_starts,
            drills=self._drills,
            gpus=self._gpus,
        )

    def _run_replaceable_ranks(
        self,
        script: Sequence[str],
        layout: RankLayout,
        watchdog: Watchdog,
        variables: Mapping[str, str],
    ) -> int:
        """Run the ranks of this node, and others in their place while those of other nodes wait."""
        code = self._run_ranks_once(script, layout, watchdog, variables)
        while watchdog.replaces_ranks:
            with log_write_errors():
                self._run_dir.clear_ranks()
            watchdog.replace_ranks()
            code = self._run_ranks_once(script, layout, watchdog, {JOINS: "1"})
        return code

    def _is_leaving(self, watchdog: Watchdog) -> bool:
        """As `is_leaving`, while nodes are connected."""
        self._forward_drills(watchdog)
        return self.is_leaving()

    def _forward_drills(self, watchdog: Watchdog) -> None:
        """Have nodes end that users have asked to preempt, and this one if it is among them."""
        for nodes, end_s in self._notice_sources.requested_drills():
            self._drills.request(nodes, end_s)
            watchdog.send_drills()
        # At the next call: the request to other nodes is sent by another thread.
        self._notice_sources.drill.end_if_due()
        if self._drills.end_s is not None:
            self._notice_sources.drill.begin(self._drills.end_s)

    def is_leaving(self) -> bool:
        """Whether this node has to end: it was asked to, or is about to be terminated."""
        return is_asked_to_leave(self._notice_sources, self._run_dir)

    def _is_left_by_leader(self, watchdog: Watchdog, code: int) -> bool:
        """Whether the ranks of this node ended because node 0 was lost, or leaves its node."""
        group = self._topology.group
        if group is None or self._config.hosted_start or self.is_leaving():
            return False
        if watchdog.is_unused:
            return True
        if code == Exit.DONE:
            return False
        if watchdog.cause and watchdog.agreement.has_lost_leader:
            return True
        # The group of node 0 loses all of its nodes together.
        is_left = watchdog.agreement.leader_leaves or code in {Exit.PREEMPTED, Exit.FENCED}
        return is_left and not group.has_leader

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
        if group := self._topology.group:
            return not group.has_leader and not self._run_dir.is_noticed()
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

    @staticmethod
    def _cause(watchdog: Watchdog) -> FailureCause | None:
        """Why all ranks ended, with whether it was a loss of nodes.

        Such a loss is no failure of the program.
        """
        cause = watchdog.cause
        return cause and replace(cause, is_node_lost=watchdog.agreement.is_loss(cause))

    def _may_restart(self, cause: FailureCause | None, policy: RestartPolicy) -> bool:
        """Whether this node can start its ranks again after `cause`.

        Not on a node that is about to be terminated, and after a failure not before the first step, as the same files would fail again.
        """
        # The others have trained before this node replaced one.
        has_begun = self._run_dir.has_trained() or bool(self._config.node_start)
        return (
            cause is not None
            and (cause.is_node_lost or (policy.allows(cause) and has_begun))
            and not self._run_dir.is_noticed()
            and not is_coordinated_exit(self._run_dir.exit_reason())
            and self._notice_sources.superseded_by is None
        )

    def _prepare_restart(self, cause: FailureCause) -> None:
        """Report the restart, and clear the files of the ranks that have ended."""
        where = "with a new node" if cause.is_node_lost else "on the same nodes"
        log_info(f"starting all ranks again {where}: {cause.detail}")
        if self._exit_report:
            self._gpus.publish(is_last=True)
            self._exit_report.write_restart(cause)
        with log_write_errors():
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
        while agent.poll() is None:
            echo.copy()
            self._poll(agent, watchdog)
            watchdog.pause(partial(_wait_for, agent))
        echo.copy()
        return agent.returncode

    def _poll(self, agent: subprocess.Popen[bytes], watchdog: Watchdog) -> None:
        """Forward notices and run the watchdog, periodically while the ranks run."""
        self._forward_drills(watchdog)
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
        place = at.nodes, at.node_rank, at.master_address, at.master_port
        if self._replaces_ranks:
            # An agent that knows all nodes cannot start ranks again while those of other nodes run. Any port will do for its own store;
            # with `--standalone`, it would wait for up to 0.3 s before it looks for other agents.
            place = 1, 0, "127.0.0.1", 0
        names = ("nnodes", "node-rank", "master-addr", "master-port")
        return [
            *(f"--{name}={value}" for name, value in zip(names, place, strict=True)),
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
            with log_write_errors():
                self._run_dir.record_hint(hinted_at)
        notice = self._notice_sources.notice()
        if notice and self._is_replaced_alone:
            log_info("preemption notice: saving; other nodes will wait for a replacement")
            with log_write_errors():
                self._run_dir.record_hint(now())
        elif notice:
            with log_write_errors():
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


def _wait_for(agent: subprocess.Popen[bytes], timeout_s: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        agent.wait(timeout_s)
