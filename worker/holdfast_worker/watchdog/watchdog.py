"""The watchdog of a node: detects failed, hung and lost ranks on any node, and ends its own.

Node 0 is the leader: the other nodes report positions and failures to it and follow its decision. A node without a
connection to the leader decides on its own observations. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.policies import MaxStall
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog import hang_inspection, messages
from holdfast_worker.watchdog.assembly import Assembly, AssemblyWait
from holdfast_worker.watchdog.failure_cause import (
    CauseElection,
    FailureCause,
    is_coordinated_exit,
)
from holdfast_worker.watchdog.gpu_monitor import GpuMonitor
from holdfast_worker.watchdog.hang_attribution import RankInspection, attribute_hang
from holdfast_worker.watchdog.heartbeat import Heartbeat, HeartbeatReader
from holdfast_worker.watchdog.hosting import Hosting
from holdfast_worker.watchdog.local_failures import CLEAN_EXITS, LocalFailures
from holdfast_worker.watchdog.messages import (
    CauseReported,
    EndNodes,
    GroupDecision,
    GroupRequests,
    HostingDecision,
    InspectReply,
    InspectRequest,
    Message,
    NodeExited,
    PhaseMessage,
    RankPositions,
    RanksBegin,
    RanksEnded,
    RanksReady,
    RestartDecision,
    StopAll,
)
from holdfast_worker.watchdog.node_channel import (
    LEADER,
    ChannelAddress,
    Connected,
    Disconnected,
    NodeChannel,
    ReadyOnStandby,
    Received,
)
from holdfast_worker.watchdog.node_drills import NodeDrills
from holdfast_worker.watchdog.replacement import PAUSE_S, Replacement, Surroundings
from holdfast_worker.watchdog.restart_agreement import RestartAgreement
from holdfast_worker.watchdog.stall import MAX_GAP_S, Stall, StallDetector, has_progressed

POSITIONS_INTERVAL_S: Final = 1.0
"""Interval of messages about rank positions.
A lower value adds traffic; a higher value makes short steps look long."""
SAVE_GRACE_S: Final = 5.0
"""Time for saves of other ranks after a rank has died.
A lower value cuts off an upload that would complete a checkpoint; a higher value pays for ranks that wait for the dead one."""
IDLE_GRACE_S: Final = 1.0
"""Time after a rank has died if no rank of this node saves.
A lower value cuts off exit handlers of scripts; a higher value pays for ranks that hang."""
INSPECTION_TIMEOUT_S: Final = 30.0
"""Time for other nodes to inspect their ranks.
A lower value decides without them; a higher value pays for nodes that hang."""


class Watchdog:
    """Monitors the ranks of a node, and with the watchdogs of other nodes all ranks."""

    cause: FailureCause | None = None
    """Why all ranks of all nodes have to end; None while they may continue."""

    def __init__(
        self,
        run_dir: RunDir,
        ranks: Sequence[int],
        address: ChannelAddress,
        max_stall: MaxStall,
        clock: Callable[[], float] = time.monotonic,
        *,
        world_size: int | None = None,
        replaces_nodes: bool = False,
        is_grouped: bool = False,
        hosting: Hosting | None = None,
        newest_starts: dict[int, int] | None = None,
        drills: NodeDrills | None = None,
        gpus: GpuMonitor | None = None,
    ) -> None:
        """`ranks` are those of this node; with a single node no channel is opened.

        `world_size`: the number of all ranks, if lost ranks are replaced while the others wait. `replaces_nodes`: the launcher
        replaces a lost node. `is_grouped`: the nodes are in several groups, which are replaced by themselves. `hosting`: nodes whose
        ranks run on others. `newest_starts`: see `NodeChannel`. `drills`: nodes that have to end on request. `gpus`: of this node.
        """
        self._hosting = hosting = hosting or Hosting(address.nodes, None)
        self._run_dir, self._ranks, self._clock = run_dir, ranks, clock
        self._gpus = gpus or GpuMonitor(address.node, run_dir)
        self._node, self._nodes, self._own_start = address.node, address.nodes, address.start
        self._node_suffix = f" on node {self._node}" if self._nodes > 1 else ""
        self._reader = HeartbeatReader(run_dir, ranks)
        channel = NodeChannel(address, held=hosting.starts, starts=newest_starts)
        self._channel = channel if self._nodes > 1 else None
        self._is_grouped, self._is_assembling = is_grouped, False
        self._begun: Mapping[int, int] | None = None
        """The starts of the nodes that began together; None before that, and if nodes do not assemble."""
        self._starts: dict[int, int] = {}
        """The start of each node that has connected."""
        self._drills = drills or NodeDrills(self._node, self._own_start, self._starts)
        self._connected: set[int] = set()
        self._heartbeats: dict[int, tuple[Heartbeat, ...]] = {}
        self._inspections: dict[int, tuple[RankInspection, ...]] = {}
        self.agreement = RestartAgreement(
            self._node, self._nodes, self._connected, is_grouped=is_grouped
        )
        """On whether the ranks of all nodes start again."""
        self._election = CauseElection(is_leader=self._node == LEADER)
        self._stall_detector = StallDetector(max_stall)
        self._polled_s = self._shared_s = self._clock()
        self._failures = LocalFailures(run_dir, self._node_suffix)
        self._own_cause: FailureCause | None = None
        self._replacement: Replacement | None = None
        if world_size:
            self._replacement = Replacement(
                run_dir,
                self._surroundings(),
                world_size,
                hosting,
                replaces_nodes=replaces_nodes,
                is_new=address.restarts is None and not is_grouped,
                is_grouped=is_grouped,
            )
        self._kill_s = self._idle_s = float("inf")

    def opened(self) -> AbstractContextManager[None]:
        """Open the channel to the other nodes."""
        return self._channel.opened() if self._channel else nullcontext()

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            node=self._node,
            nodes=self._nodes,
            ranks=len(self._ranks),
            connected=self._connected,
            election=self._election,
            send=self._send,
            hold=lambda nodes: self._channel.hold(nodes) if self._channel else None,
            step=lambda: self._step,
            has_failed=lambda: self._own_cause is not None,
            is_ending=lambda: self.cause is not None,
        )

    @property
    def replaces_ranks(self) -> bool:
        """Whether the ranks of this node have failed and start again, while others wait."""
        return self._replacement is not None and self._replacement.is_requested

    @property
    def restarts(self) -> int:
        """How often the ranks of all nodes have started again, as node 0 counts."""
        return self._channel.restarts if self._channel else 0

    @property
    def must_kill(self) -> bool:
        """Whether the grace period of this node's ranks is over."""
        now_s = self._clock()
        return now_s >= self._kill_s or (now_s >= self._idle_s and not self._can_save)

    @property
    def _can_save(self) -> bool:
        """Whether a save is in progress on this node that can still succeed."""
        failure = self._run_dir.failure()
        saving = {each.rank for each in self._heartbeats.get(self._node, ()) if each.is_saving}
        # A checkpoint stays incomplete without the shard of a rank that died.
        return bool(saving) and not (failure and failure.rank in saving)

    def poll(self) -> None:
        """Read heartbeats and messages, and decide whether the ranks have to end."""
        now_s = self._clock()
        if now_s - self._polled_s > MAX_GAP_S or is_coordinated_exit(self._run_dir.exit_reason()):
            # This process was suspended, or the ranks exit after a vote: those that still run need no others.
            self._election.restart_timeouts(now_s)
        self._polled_s = now_s
        self._receive(now_s)
        self._heartbeats[self._node] = tuple(self._reader.read())
        if self._own_cause is None and (cause := self._failures.find(now_s, self._step)):
            self._report_cause(now_s, cause)
        if now_s - self._shared_s > POSITIONS_INTERVAL_S:
            self._shared_s = now_s
            gpus = self._gpus.share()
            if self._node != LEADER:
                self._send(RankPositions(self._heartbeats[self._node], gpus))
        if self._replacement and (overdue := self._replacement.poll(now_s)):
            self.stop_all(overdue)
        self._evaluate(now_s)

    def pause(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait until the next poll or a message of another node; `sleep` waits on a single node."""
        pause_s = self._replacement.pause_s if self._replacement else PAUSE_S
        (self._channel.wait if self._channel else sleep)(pause_s)

    def replace_ranks(self) -> None:
        """Watch new ranks in place of those of this node, which have ended."""
        assert self._replacement, "the run replaces ranks"
        self._replacement.is_requested = False
        self._own_cause = None
        self._failures = LocalFailures(self._run_dir, self._node_suffix)
        self._election.forget()
        self._reader = HeartbeatReader(self._run_dir, self._ranks)

    def determine_cause(self, code: int) -> None:
        """Determine the cause after the ranks of this node have ended with `code`."""
        if code not in CLEAN_EXITS and not is_coordinated_exit(self._run_dir.exit_reason()):
            while self.cause is None and not self.replaces_ranks:
                self.poll()
                if self._own_cause is None:
                    now_s, step = self._clock(), self._step
                    self._report_cause(now_s, self._failures.of_agent(code, step))
                self.pause()

    def assemble(self, is_leaving: Callable[[], bool]) -> Assembly:
        """Wait for the nodes of all groups, before the ranks start.

        `is_leaving`: whether this node has to end.
        """
        assert self._channel, "nodes of several groups have a channel"
        waiting = AssemblyWait(self._node, self._nodes, self._own_start, self._clock())
        self._is_assembling = True
        while not is_leaving():
            now_s = self._clock()
            self._receive(now_s)
            if self._node == LEADER:
                self._channel.hold(self._hosting.starts_of(self._connected))
                if len(self._connected) == self._nodes - 1:
                    self._begun = dict(self._starts)
                    self._channel.announce(messages.encode(RanksBegin(self._begun), now_s))
            found = waiting.poll(now_s, self._connected, self.agreement.exit_codes, self._begun)
            if found is Assembly.JOINS and not self._replacement:
                found = None  # The leader has all ranks start again.
            if self.cause:
                found = Assembly.STARTS_AGAIN
            if found:
                self._is_assembling = False
                # Nodes that left while others were missing have come back.
                self._election.forget()
                self.agreement.lost_step = None
                if self._replacement:
                    self._replacement.start(self._begun or {}, is_new=found is Assembly.JOINS)
                return found
            self.pause()
        return Assembly.LEAVES

    @property
    def is_unused(self) -> bool:
        """Whether the leader has exited before the ranks of this new node took part in the run."""
        is_waiting = self._replacement is not None and self._replacement.waits_for_leader
        return is_waiting and LEADER in self.agreement.exit_codes

    @property
    def has_met_leader(self) -> bool:
        """Whether this node was ever connected to the leader."""
        return LEADER in self._starts

    @property
    def standing_nodes(self) -> set[int]:
        """This node and those that are connected to it."""
        return {self._node, *self._connected}

    def agree_on_restart(self, *, may_restart: bool) -> bool:
        """Whether the ranks of all nodes start again; call it once those of this node have ended.

        It returns when all nodes have called it. `may_restart`: they may do so on this node.
        """
        if not self._channel:
            return may_restart
        self.agreement.begin(
            self._clock(), may_restart=may_restart, waits_for_nodes=self._waits_for_nodes
        )
        self._resend()
        self._receive(self._clock())
        while not self.agreement.is_over(self._clock()):
            time.sleep(PAUSE_S / 10)
            self._receive(self._clock())
        if not self.agreement.decision:
            self._run_dir.withdraw_waiting()
        self._resend()
        return bool(self.agreement.decision)

    @property
    def _waits_for_nodes(self) -> bool:
        """Whether the ranks of all nodes start again only when lost nodes have been replaced."""
        return self._replacement is not None and self._replacement.waits_for_nodes

    def announce_exit(self, code: int) -> None:
        """Notify the other nodes that this one ends with `code`."""
        if self._channel and self._node == LEADER:
            # Also nodes that connect until the channel is closed.
            self._channel.announce(messages.encode(NodeExited(code), self._clock()))
        else:
            self._send(NodeExited(code))

    def send_drills(self) -> None:
        """Send the requests of node 0 to end nodes."""
        for request in self._drills.messages():
            self._send(request)

    def stop_all(self, cause: FailureCause) -> None:
        """End the ranks of all nodes for the given cause."""
        if self.cause is None:
            self._stop_ranks(self._clock(), cause)

    @property
    def _all_heartbeats(self) -> list[Heartbeat]:
        """The known heartbeats of all nodes."""
        return [each for heartbeats in self._heartbeats.values() for each in heartbeats]

    @property
    def _step(self) -> int:
        """Number of completed steps."""
        return max((each.step for each in self._all_heartbeats), default=0)

    @property
    def _sees_all_ranks(self) -> bool:
        """Whether the heartbeats of all nodes are known."""
        present = (self._connected | {self._node}) & self._heartbeats.keys()
        return len(present | self.agreement.exit_codes.keys()) == self._nodes

    def _receive(self, now_s: float) -> None:
        for event in self._channel.receive() if self._channel else ():
            match event:
                case Connected(node, start):
                    self._connected.add(node)
                    self._election.mark_connected(node)
                    # A node whose ranks have finished has begun another program, and waits for that of the leader.
                    if self.agreement.exit_codes.get(node) != Exit.DONE:
                        self.agreement.record_return(node)
                        self._mark_start(now_s, node, start)
                    self._resend()
                case Disconnected(node):
                    self._connected.discard(node)
                    self.agreement.record_loss(node, self._step)
                    if node not in self.agreement.exit_codes:
                        self._election.mark_disconnected(now_s, node)
                case ReadyOnStandby(node, is_ready):
                    if self._replacement:
                        self._replacement.mark_ready(node, is_ready=is_ready)
                case Received(node, body, at_s):
                    with suppress(ValueError):  # From a different version or program.
                        self._handle(now_s, node, messages.decode(body, at_s))

    def _mark_start(self, now_s: float, node: int, start: int) -> None:
        """Record the start of a node, which may be a replacement of the one before."""
        before, self._starts[node] = self._starts.get(node, start), start
        if self._is_assembling:
            return
        if start > before:
            self.agreement.lost_step = self._step
        if self._replacement:
            self._replacement.mark_connected(now_s, node, start)
        elif self._is_grouped and start > before:
            detail = f"node {node} was lost"
            self._election.add(
                now_s, FailureCause(Exit.FAILED, self._step, detail, is_consequence=True)
            )

    def _handle(self, now_s: float, node: int, message: Message) -> None:
        match message:
            case RankPositions(heartbeats, gpus):
                self._heartbeats[node] = heartbeats
                self._gpus.add(node, gpus)
            case CauseReported(cause):
                self._add_cause(now_s, cause, node)
            case InspectRequest():
                self._send(InspectReply(hang_inspection.inspect_ranks(self._run_dir, self._ranks)))
            case InspectReply(findings):
                self._inspections[node] = findings
            case StopAll(cause):
                if self.cause is None and node == LEADER:
                    self._stop_ranks(now_s, cause)
            case RanksBegin() | NodeExited() | RanksEnded() | RestartDecision() | EndNodes():
                self._handle_phase(now_s, node, message)
            case GroupRequests() | GroupDecision() | HostingDecision() | RanksReady():
                if self._replacement:
                    self._replacement.handle(node, message)

    def _handle_phase(self, now_s: float, node: int, message: PhaseMessage) -> None:
        """Handle a message about the start or the end of ranks."""
        match message:
            case EndNodes():
                self._drills.handle(node, message)
            case RanksBegin(starts):
                if node == LEADER and self._begun is None:
                    self._begun = starts
            case RanksEnded(may_restart):
                self.agreement.votes[node] = may_restart
            case RestartDecision(is_restart):
                if node == LEADER:
                    self.agreement.decision = is_restart
            case NodeExited(code):
                self._mark_exited(now_s, node, code)

    def _mark_exited(self, now_s: float, node: int, code: int) -> None:
        self.agreement.record_exit(node, code)
        self._election.mark_connected(node)
        if self._replacement and self._replacement.waits_for_leader and node == LEADER:
            detail = "the run has ended without this node, whose ranks ran elsewhere"
            self.stop_all(FailureCause(code, self._step, detail, has_rank_died=False))
        elif code not in CLEAN_EXITS:
            detail = f"node {node} ended with exit code {code}"
            self._election.add(now_s, FailureCause(code, self._step, detail, is_consequence=True))

    def _send(self, message: Message) -> None:
        if self._channel:
            ends = isinstance(message, NodeExited | StopAll)
            self._channel.send(messages.encode(message, self._clock()), to_standby=ends)

    def _report_cause(self, now_s: float, cause: FailureCause) -> None:
        self._own_cause = cause
        self._resend()
        self._add_cause(now_s, cause, self._node)

    def _add_cause(self, now_s: float, cause: FailureCause, node: int) -> None:
        """Add the cause of a failure on a node; the leader replaces its ranks if it can."""
        remaining: FailureCause | None = cause
        if self._replacement and self._node == LEADER and self.cause is None:
            remaining = self._replacement.begin(now_s, cause, node)
        if remaining:
            self._election.add(now_s, remaining)

    def _resend(self) -> None:
        """Send causes, votes, decisions and drills again, as nodes may have missed them."""
        if self._node == LEADER and self.cause:
            self._send(StopAll(self.cause))
        elif self._node != LEADER and self._own_cause and not self.replaces_ranks:
            self._send(CauseReported(self._own_cause))
        if self._replacement:
            self._replacement.resend()
        self.send_drills()
        if message := self.agreement.message:
            self._send(message)

    def _evaluate(self, now_s: float) -> None:
        """Decide whether all ranks have to end.

        Nodes other than the leader decide only if it is unreachable.
        """
        heartbeats = self._all_heartbeats
        stall = self._stall_detector.check(now_s, heartbeats, is_whole=self._sees_all_ranks)
        if self.cause:
            return
        is_suspected = self._replacement is not None and self._replacement.is_suspected
        cause = self._election.elect(now_s, self._step, is_suspected=is_suspected)
        if cause is None and stall and (self._node == LEADER or LEADER not in self._connected):
            cause = self._inspect_stall(stall, heartbeats)
        if cause:
            self.stop_all(cause)

    def _inspect_stall(self, stall: Stall, before: Sequence[Heartbeat]) -> FailureCause | None:
        """Inspect all ranks and attribute the stall; None if a rank has progressed in the meantime."""
        log_info(f"no rank made a step for {stall.for_s:.0f} s: inspecting all ranks")
        asked = set(self._connected)
        self._inspections.clear()  # An earlier stall had different causes.
        self._send(InspectRequest())
        self._inspections[self._node] = hang_inspection.inspect_ranks(self._run_dir, self._ranks)
        until_s = self._clock() + INSPECTION_TIMEOUT_S
        while asked & self._connected - self._inspections.keys() and self._clock() < until_s:
            self._receive(self._clock())
            time.sleep(PAUSE_S)
        self._heartbeats[self._node] = tuple(self._reader.read())
        if has_progressed(before, self._all_heartbeats):
            log_info("a rank has progressed in the meantime: the run continues")
            return None
        findings = [finding for found in self._inspections.values() for finding in found]
        nodes = {each.rank: node for node, some in self._heartbeats.items() for each in some}
        blamed = attribute_hang(stall, before, findings, nodes, is_whole=self._sees_all_ranks)
        return FailureCause(Exit.STALLED, stall.step, blamed.sentence, has_rank_died=False)

    def _stop_ranks(self, now_s: float, cause: FailureCause) -> None:
        self.cause = cause
        if not self._waits_for_nodes:
            self._run_dir.withdraw_waiting()
        self._kill_s = now_s + SAVE_GRACE_S if cause.has_rank_died else now_s
        self._idle_s = now_s + IDLE_GRACE_S
        self._resend()
        log_info(f"ending all ranks: {cause.detail}")
        if cause.exit_code == Exit.STALLED:
            hang_inspection.log_advice(self._run_dir)
        if not is_coordinated_exit(self._run_dir.exit_reason()):
            with suppress(OSError):
                self._run_dir.replace_exit_reason(
                    cause.to_exit_reason(is_noticed=self._run_dir.is_noticed())
                )
