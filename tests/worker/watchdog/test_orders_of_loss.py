"""Whatever the order in which node 0 learns of losses, the run recovers from them: no loss counts twice.

Events of one node arrive in their order, and those of several nodes in any. A busy machine handles them late and many at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast_worker.watchdog.failure_cause import FailureCause
from holdfast_worker.watchdog.group_files import GroupFiles
from holdfast_worker.watchdog.hosting import STARTS_PER_NODE
from holdfast_worker.watchdog.messages import GroupDecision, GroupRequests, HostingDecision
from hypothesis import given
from hypothesis import strategies as st
from worker.support.leading_wrapper import NODES, Wrapper, request, whole_leader

OTHERS = range(1, NODES)
STEP_S = 0.05

Action = tuple[str, int]
ACTIONS = ("kill rank", "lose", "replace", "break", "ask", "host", "deliver", "deliver", "deliver")


@dataclass(slots=True)
class Node:
    """A node other than the leader, or what is in its place."""

    start: int = 0
    """Of the process that has connected last, or is about to."""
    replacements: int = 0
    is_there: bool = True
    is_new: bool = False
    """Whether its rank is a new one."""
    events: deque[partial[None]] = field(default_factory=deque)
    """What node 0 has not handled yet."""


class Run:
    """A run, as its leader sees it."""

    def __init__(self, path: Path, min_nodes: int | None) -> None:
        self.leader: Wrapper = whole_leader(path, min_nodes)
        self.now_s = 1.0
        self.asked = 0
        """The generation of the group for which ranks ask; 0 while they train."""
        self.nodes = {number: Node() for number in OTHERS}

    def act(self, action: str, number: int) -> None:
        """Let something happen, of which node 0 may learn later."""
        node = self.nodes[number]
        match action:
            case "kill rank" if node.is_there and not node.is_new:
                node.is_new = True
                node.events.append(partial(self._fail, number))
            case "lose" if node.is_there:
                node.is_there = False
                node.events.append(partial(self._disconnect, number))
            case "replace" if not node.is_there:
                node.replacements += 1
                self._connect_new(number, STARTS_PER_NODE * node.replacements)
            case "break" if node.is_there:
                node.events.append(partial(self._disconnect, number))
                node.events.append(partial(self._connect, number, node.start))
                self._ask(number)
            case "ask" if node.is_there:
                self._ask(number)
            case "host":
                host = self.hosts.get(number)
                if host and host > node.start:
                    self._connect_new(number, host)
            case "deliver" if node.events:
                node.events.popleft()()
        self.poll()

    def poll(self) -> None:
        """Have the leader decide."""
        self.now_s += STEP_S
        assert self.leader.replacement.poll(self.now_s) is None
        assert self.leader.election.elect(self.now_s, self.leader.step) is None, "a loss ends it"
        if self.formed >= self.asked > 0:
            self.asked = 0
            self.leader.step += 2
            for node in self.nodes.values():
                # The death of others is not known yet.
                node.is_new = any(event.func == self._fail for event in node.events)

    @property
    def hosts(self) -> dict[int, int]:
        """The start of each hosted node, as the leader has decided."""
        decided = [each.hosts for each in self.leader.sent if isinstance(each, HostingDecision)]
        return {node: host.start for node, host in decided[-1].items()} if decided else {}

    @property
    def formed(self) -> int:
        """The generation of the newest group in which all ranks continue."""
        decided = [each.answer for each in self.leader.sent if isinstance(each, GroupDecision)]
        return max((each.generation for each in decided if each.is_formed), default=0)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks train in one group."""
        is_waiting = self.asked or any(node.is_new or node.events for node in self.nodes.values())
        return self.formed > 0 and not is_waiting

    def settle(self) -> None:
        """Replace what is lost, and let all ranks ask for a group, until they train."""
        for _ in range(4 * NODES):
            for number, node in self.nodes.items():
                if not node.is_there:
                    self.act("replace", number)
                while node.events:
                    self.act("deliver", number)
                self.act("host", number)
            if self.is_whole:
                return
            GroupFiles(self.leader.run_dir).request(request(0, generation=self.formed + 1))
            for number in self.nodes:
                self.act("ask", number)
        raise AssertionError("the ranks form no group")

    def _connect_new(self, number: int, start: int) -> None:
        node = self.nodes[number]
        node.start, node.is_there, node.is_new = start, True, True
        node.events.append(partial(self._connect, number, start))

    def _ask(self, number: int) -> None:
        self.asked = self.formed + 1
        asked = request(number, is_new=self.nodes[number].is_new, generation=self.asked)
        message = GroupRequests((asked,))
        self.nodes[number].events.append(partial(self.leader.replacement.handle, number, message))

    def _fail(self, number: int) -> None:
        detail = f"rank {number} on node {number} was killed by signal 9"
        cause = FailureCause(137, self.leader.step, detail)
        remaining = self.leader.replacement.begin(self.now_s, cause, number)
        if remaining:
            self.leader.election.add(self.now_s, remaining)

    def _disconnect(self, number: int) -> None:
        self.leader.lose(number, self.now_s)

    def _connect(self, number: int, start: int) -> None:
        self.leader.connected.add(number)
        self.leader.election.mark_connected(number)
        self.leader.replacement.mark_connected(self.now_s, number, start)


def check_recovery(actions: Sequence[Action], min_nodes: int | None) -> None:
    with TemporaryDirectory() as folder:
        run = Run(Path(folder), min_nodes)
        for action, number in [("kill rank", 1), *actions]:
            run.act(action, number)

        run.settle()


actions = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(OTHERS)), max_size=25)


@given(actions)
def test_replaced_nodes_form_a_group(actions: Sequence[Action]) -> None:
    check_recovery(actions, None)


@given(actions)
def test_elastic_nodes_form_a_group(actions: Sequence[Action]) -> None:
    check_recovery(actions, 1)
