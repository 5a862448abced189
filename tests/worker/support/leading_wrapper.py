"""The wrapper of a node as `Replacement` sees it, without a channel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog.failure_cause import CauseElection
from holdfast_worker.watchdog.group_files import GroupRequest
from holdfast_worker.watchdog.hosting import Hosting
from holdfast_worker.watchdog.messages import GroupDecision, Message
from holdfast_worker.watchdog.replacement import Replacement, Surroundings

NODES = 3


class Wrapper:
    """A wrapper, the nodes that it is connected to, and what it has sent."""

    def __init__(
        self,
        path: Path,
        node: int = 0,
        *,
        is_new: bool = False,
        min_nodes: int | None = None,
        is_grouped: bool = False,
    ) -> None:
        self.run_dir = RunDir(path / f"node-{node}")
        self.run_dir.path.mkdir()
        self.run_dir.clear()
        self.connected = {*range(NODES)} - {node} if node == 0 else {0}
        self.election = CauseElection(is_leader=node == 0)
        self.sent: list[Message] = []
        self.held: list[Mapping[int, int]] = []
        self.step = 5
        around = Surroundings(
            node=node,
            nodes=NODES,
            ranks=1,
            connected=self.connected,
            election=self.election,
            send=self.sent.append,
            hold=self.held.append,
            step=lambda: self.step,
            has_failed=lambda: False,
            is_ending=lambda: False,
        )
        self.replacement = Replacement(
            self.run_dir,
            around,
            NODES,
            Hosting(NODES, min_nodes),
            replaces_nodes=True,
            is_new=is_new,
            is_grouped=is_grouped,
        )

    @property
    def decisions(self) -> list[int]:
        """Generations of the groups about which it has decided."""
        return [each.answer.generation for each in self.sent if isinstance(each, GroupDecision)]

    def lose(self, node: int, now_s: float) -> None:
        """Break the connection to a node."""
        self.connected.discard(node)
        self.election.mark_disconnected(now_s, node)


def whole_leader(path: Path, min_nodes: int | None = None, *, is_grouped: bool = False) -> Wrapper:
    """The leader of a run in training, to which all nodes are connected."""
    wrapper = Wrapper(path, min_nodes=min_nodes, is_grouped=is_grouped)
    wrapper.run_dir.mark_replaceable()
    wrapper.run_dir.mark_trained()
    for node in (1, 2):
        wrapper.replacement.mark_connected(0.0, node, 0)
    return wrapper


def request(rank: int, *, is_new: bool = False, generation: int = 1) -> GroupRequest:
    """The request of a rank for a group; the initial one has generation 0."""
    return GroupRequest(rank=rank, generation=generation, address=f"host:{rank}", is_new=is_new)
