"""The watchdog of a node: sees ranks that fell, hang or are gone, on any node, and says when those of this one have to end.

The first node is the judge: the others tell it where their ranks are and what befell them, and do as it says. A node that
does not reach it judges by what it sees itself. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.policies import MaxStall
from holdfast_worker.run_dir import Failure, RunDir
from holdfast_worker.watchdog import hang_inspection, messages
from holdfast_worker.watchdog.failure_cause import (
    LAST_SAVE_S,
    CauseElection,
    FailureCause,
    is_agreed,
    of_fall,
)
from holdfast_worker.watchdog.hang_attribution import Finding, attribute_hang
from holdfast_worker.watchdog.heartbeat import Heartbeat, HeartbeatReader
from holdfast_worker.watchdog.messages import (
    CauseReported,
    InspectReply,
    InspectRequest,
    Letter,
    NodeExited,
    RankPositions,
    StopAll,
)
from holdfast_worker.watchdog.node_channel import (
    LEADER,
    ChannelAddress,
    Connected,
    Disconnected,
    NodeChannel,
    Received,
)
from holdfast_worker.watchdog.stall import BLIND_S, Stall, StallDetector, has_gone_on

SHARE_S: Final = 1.0
"""Between two letters about where the ranks are. Longer makes short steps look long, shorter is traffic."""
LEAVE_S: Final = 5.0
"""After a rank has died, for the others to save what they can. Longer pays for ranks that wait for the dead, shorter cuts
off an upload that would have become a checkpoint."""
IDLE_S: Final = 1.0
"""The same where no rank of this node saves. Longer pays for ranks that hang, shorter cuts off the handlers of scripts that end."""
SPEECHLESS_S: Final = 30.0
"""After a rank has said its last words, for it to die. It waits for a save that is under way; what lasts longer hangs."""
ANSWER_S: Final = 30.0
"""For other nodes to find out what their ranks do. Longer keeps nodes that hang, shorter judges without them."""
PAUSE_S: Final = 0.1
WELL: Final = frozenset({Exit.DONE, Exit.PREEMPTED})
"""Exit codes of which nobody has to be told why."""


class Watchdog:
    """Watches over the ranks of a node, and with those of other nodes over all."""

    def __init__(
        self,
        run_dir: RunDir,
        ranks: Sequence[int],
        meeting: ChannelAddress,
        max_stall: MaxStall,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ranks` are those of this node; where there is no other node, nobody is met."""
        self._run_dir = run_dir
        self._ranks = ranks
        self._clock = clock
        self._node, self._nodes = meeting.node, meeting.nodes
        self._where = f" on node {self._node}" if self._nodes > 1 else ""
        self._beats = HeartbeatReader(run_dir, ranks)
        self._bond = NodeChannel(meeting) if self._nodes > 1 else None
        self._met: set[int] = set()
        self._departed: set[int] = set()
        self._pulses: dict[int, tuple[Heartbeat, ...]] = {}
        self._answers: dict[int, tuple[Finding, ...]] = {}
        self._hearing = CauseElection(is_chief=self._node == LEADER)
        self._stopwatch = StallDetector(max_stall)
        self._looked_s = self._shared_s = self._clock()
        self._spoken_s: float | None = None
        self._own: FailureCause | None = None
        self._kill_s = self._idle_s = float("inf")
        self.cause: FailureCause | None = None
        """Why all ranks of all nodes have to end; None while they need not."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be in touch with the other nodes."""
        with ExitStack() as closing:
            if self._bond:
                closing.enter_context(self._bond.opened())
            yield

    @property
    def is_to_kill(self) -> bool:
        """Whether the ranks of this node have had their time."""
        now_s = self._clock()
        return now_s >= self._kill_s or (now_s >= self._idle_s and not self._can_save)

    @property
    def _can_save(self) -> bool:
        """Whether a save is under way on this node that can still succeed, as far as is seen here."""
        fallen = self._run_dir.failure()
        saving = {pulse.rank for pulse in self._pulses.get(self._node, ()) if pulse.is_saving}
        # What a rank had not written when it died is missing from the checkpoint.
        return bool(saving) and not (fallen and fallen.rank in saving)

    def look(self) -> None:
        """See what happened, here and elsewhere."""
        now_s = self._clock()
        if now_s - self._looked_s > BLIND_S or is_agreed(self._run_dir.left()):
            # Nobody listened here for a while. Or the ranks are done with each other: those that still work need no other.
            self._hearing.forgive(now_s)
        self._looked_s = now_s
        self._hear(now_s)
        self._pulses[self._node] = tuple(self._beats.read())
        if self._own is None and (cause := self._fall(now_s)):
            self._tell(now_s, cause)
        if now_s - self._shared_s > SHARE_S and self._node != LEADER:
            self._shared_s = now_s
            self._say(RankPositions(self._pulses[self._node]))
        self._judge(now_s)

    def conclude(self, code: int) -> None:
        """The ranks of this node have ended by themselves: find out why, and part from the other nodes."""
        if code not in WELL and not is_agreed(self._run_dir.left()):
            while self.cause is None:
                self.look()
                if self._own is None:
                    words = f"torchrun{self._where} ended with exit code {code}"
                    self._tell(self._clock(), FailureCause(code, self._step, words, is_echo=True))
                time.sleep(PAUSE_S)
        self._say(NodeExited(code))

    def end(self, cause: FailureCause) -> None:
        """End the ranks of all nodes, for a reason that was heard elsewhere."""
        if self.cause is None:
            self._end(self._clock(), cause)

    @property
    def _everybody(self) -> list[Heartbeat]:
        """Where all ranks are of whom that is known."""
        return [pulse for pulses in self._pulses.values() for pulse in pulses]

    @property
    def _step(self) -> int:
        """Steps that are done."""
        return max((pulse.step for pulse in self._everybody), default=0)

    @property
    def _is_whole(self) -> bool:
        """Whether it is known where the ranks of all nodes are."""
        present = (self._met | {self._node}) & self._pulses.keys()
        return len(present | self._departed) == self._nodes

    def _hear(self, now_s: float) -> None:
        for news in self._bond.heard() if self._bond else ():
            match news:
                case Connected(node):
                    self._met.add(node)
                    self._hearing.regain(node)
                    self._repeat()
                case Disconnected(node):
                    self._met.discard(node)
                    if node not in self._departed:
                        self._hearing.lose(now_s, node)
                case Received(node, words, at_s):
                    with suppress(ValueError):  # Of another version, or a stranger's.
                        self._take(now_s, node, messages.read(words, at_s))

    def _take(self, now_s: float, node: int, letter: Letter) -> None:
        match letter:
            case RankPositions(pulses):
                self._pulses[node] = pulses
            case CauseReported(cause):
                self._hearing.tell(now_s, cause)
            case InspectRequest():
                self._say(
                    InspectReply(tuple(hang_inspection.inspect_ranks(self._run_dir, self._ranks)))
                )
            case InspectReply(findings):
                self._answers[node] = findings
            case StopAll(cause):
                if self.cause is None and node == LEADER:
                    self._end(now_s, cause)
            case NodeExited(code):
                self._departed.add(node)
                self._hearing.regain(node)
                if code not in WELL:
                    words = f"node {node} ended with exit code {code}"
                    self._hearing.tell(now_s, FailureCause(code, self._step, words, is_echo=True))

    def _say(self, letter: Letter) -> None:
        if self._bond:
            self._bond.say(messages.write(letter, self._clock()))

    def _tell(self, now_s: float, cause: FailureCause) -> None:
        self._own = cause
        self._hearing.tell(now_s, cause)
        self._repeat()

    def _repeat(self) -> None:
        """Say what others have to know, and may have missed while they were not connected."""
        if self._node == LEADER and self.cause:
            self._say(StopAll(self.cause))
        elif self._node != LEADER and self._own:
            self._say(CauseReported(self._own))

    def _fall(self, now_s: float) -> FailureCause | None:
        """What befell a rank of this node; None if nothing did, or they leave together."""
        left, failure = self._run_dir.left(), self._run_dir.failure()
        if is_agreed(left):
            return None
        if left and self._spoken_s is None:
            self._spoken_s = now_s
        spoken_for_s = 0.0 if self._spoken_s is None else now_s - self._spoken_s
        words = ""
        if failure and failure.exit_code not in WELL:
            words = self._run_dir.last_line(failure.rank)
        elif left and spoken_for_s > SPEECHLESS_S:
            # It waits for a save that is under way, and dies then. Unless it hangs.
            failure = Failure(left.rank or 0, left.exit_code)
        else:
            return None
        cause = of_fall(failure, left, words, self._step, self._where)
        # A rank that waited in vain has no part in a checkpoint, so that the others have nothing left to save.
        return replace(cause, is_death=spoken_for_s < LAST_SAVE_S)

    def _judge(self, now_s: float) -> None:
        """Decide whether all ranks have to end; on a node that is not the first, only what that one cannot."""
        everybody = self._everybody
        stall = self._stopwatch.look(now_s, everybody, is_whole=self._is_whole)
        if self.cause:
            return
        cause = self._hearing.verdict(now_s, self._step)
        if cause is None and stall and (self._node == LEADER or LEADER not in self._met):
            cause = self._investigate(stall, everybody)
        if cause:
            self.end(cause)

    def _investigate(self, stall: Stall, everybody: Sequence[Heartbeat]) -> FailureCause | None:
        """Whose fault it is that no rank makes a step; None if one does, after all."""
        log_info(f"no rank made a step for {stall.for_s:.0f} s: looking at what each of them does")
        asked = set(self._met)
        self._answers.clear()  # An earlier stall had other reasons.
        self._say(InspectRequest())
        self._answers[self._node] = tuple(hang_inspection.inspect_ranks(self._run_dir, self._ranks))
        until_s = self._clock() + ANSWER_S
        while asked & self._met - self._answers.keys() and self._clock() < until_s:
            self._hear(self._clock())
            time.sleep(PAUSE_S)
        self._pulses[self._node] = tuple(self._beats.read())
        if has_gone_on(everybody, self._everybody):
            log_info("a rank has gone on meanwhile: nobody is ended")
            return None
        findings = [finding for found in self._answers.values() for finding in found]
        homes = {pulse.rank: node for node, pulses in self._pulses.items() for pulse in pulses}
        blamed = attribute_hang(stall, everybody, findings, homes, is_whole=self._is_whole)
        return FailureCause(Exit.STALLED, stall.step, blamed.sentence, is_death=False)

    def _end(self, now_s: float, cause: FailureCause) -> None:
        self.cause = cause
        self._kill_s = now_s + LEAVE_S if cause.is_death else now_s
        self._idle_s = now_s + IDLE_S
        self._repeat()
        log_info(f"all ranks have to end: {cause.detail}")
        if cause.exit_code == Exit.STALLED:
            log_info(
                "if they were busy with something that has to take so long, let the script call run.beat() in it, "
                f"or set holdfast.limits.max_stall; what they did is in {self._run_dir.hang}"
            )
        if not is_agreed(self._run_dir.left()):
            with suppress(OSError):
                self._run_dir.settle(cause.left(is_noticed=self._run_dir.is_noticed()))
