"""The shape of a run: how many ranks each of its nodes has, and so which rank is where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_worker.console import say, tell
from holdfast_worker.wire import Exit


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranks of each node, in the order of the nodes."""

    ranks: tuple[int, ...]

    @classmethod
    def of(cls, counts: Sequence[int], nodes: int) -> Shape:
        """A run on so many nodes, with one count for each, or one for all.

        Raises:
            ValueError: there are counts for another number of nodes.
        """
        if len(counts) == 1:
            return cls((*counts,) * nodes)
        if len(counts) != nodes:
            raise ValueError(
                f"--nproc-per-node names {len(counts)} nodes, but there are {nodes}: write one number for each, or one for all"
            )
        return cls((*counts,))

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(self.ranks)

    def of_node(self, node: int) -> range:
        """The ranks of a node: they follow on those of the nodes before it, however many these have."""
        first = sum(self.ranks[:node])
        return range(first, first + self.ranks[node])

    def table(self) -> str:
        """Which rank is where, for people."""
        rows = [("NODE", "LOCAL_RANK", "RANK")]
        for node, count in enumerate(self.ranks):
            rows.append((str(node), _listed(range(count)), _listed(self.of_node(node))))
        widths = [max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1]]
        lines = [
            "".join(word.ljust(width) for word, width in zip(row, [*widths, 0], strict=True))
            for row in rows
        ]
        return "\n".join([*lines, self._rule()])

    def _rule(self) -> str:
        each, *others = {*self.ranks}
        if others:
            sizes = " + ".join(map(str, self.ranks))
            return f"WORLD_SIZE = {sizes} = {self.world_size}, RANK = ranks of the nodes before + LOCAL_RANK"
        nodes = len(self.ranks)
        return f"WORLD_SIZE = {nodes} x {each} = {self.world_size}, RANK = NODE x {each} + LOCAL_RANK"  # fmt: skip


def counts(text: str) -> tuple[int, ...]:
    """Ranks of nodes, of `8` or `4,2`.

    Raises:
        ValueError: it is neither.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", text):
        raise ValueError(
            f"{text!r} is no number of ranks: write 8, or 4,2 for nodes that are not alike"
        )
    return tuple(map(int, text.split(",")))


def show(given: Sequence[int], nodes: int | None) -> int:
    """Say which rank is where; the exit code. `nodes` is None for as many as counts are given."""
    try:
        if nodes is not None and nodes < 1:
            raise ValueError(f"--nodes is {nodes}: a run has at least one node")  # noqa: TRY301
        say(Shape.of(given, nodes or len(given)).table())
    except ValueError as error:
        tell(str(error))
        return Exit.USAGE
    return Exit.DONE


def _listed(ranks: range) -> str:
    return ",".join(map(str, ranks))
