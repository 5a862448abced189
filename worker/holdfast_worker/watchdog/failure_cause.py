"""The cause of an end: what one node says about it, and which of several is believed. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGABRT, SIGTERM
from typing import Final

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason, Failure

LONGEST_DETAIL: Final = 500
"""Characters of an error that go into a report; some carry whole tensors."""
ECHO: Final = re.compile(r"\bgloo\b|\bNCCL\b|\bDist(Backend|Network|Store)Error\b|\bby peer\b")
"""What torch says when it lost another rank, in the words of its libraries."""
HEARING_S: Final = 3.0
"""For a better cause than an echo to be told. Longer keeps ranks that nobody needs, shorter believes the echo."""
GONE_S: Final = 10.0
"""After a connection to a node broke, for it to come back. Longer pays for nodes that wait for one that is gone, shorter
takes a hiccup of the network for its end."""
LAST_SAVE_S: Final = 10.0
"""For a save under way when the script fails. Longer keeps a dead job on paid nodes, shorter throws away work."""
AGREED: Final = frozenset({"finished", "preempted"})
"""Reasons with which all ranks leave after a vote."""


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Why the ranks of all nodes have to end."""

    exit_code: int
    step: int
    detail: str
    is_echo: bool = False
    """Whether it sounds like a consequence of something that happened elsewhere."""
    is_death: bool = True
    """Whether a rank has just died, so that the others get some seconds to save. Else all ranks end at once."""

    def left(self, *, is_noticed: bool) -> ExitReason:
        """The same as last words. Who was told that nodes will be taken, and then lost one, was preempted."""
        if is_noticed and self.is_echo:
            return ExitReason("preempted", Exit.PREEMPTED, self.step, self.detail)
        return ExitReason("failed", self.exit_code, self.step, self.detail)


def is_agreed(left: ExitReason | None) -> bool:
    """Whether all ranks decided together to leave; what happens on the way out is no reason to end anybody."""
    return left is not None and (
        left.reason in AGREED
        or left.exit_code in {Exit.USAGE, Exit.FENCED, Exit.UNUSABLE_STORE, Exit.PREEMPTED}
    )


def of_fall(
    failure: Failure, left: ExitReason | None, last_line: str, step: int, where: str
) -> FailureCause:
    """The cause that the first fall of a node's rank is.

    `left` are the last words of any of its ranks, None if none had time for some. `last_line` is what the fallen rank
    wrote last, `step` the steps that were done, and `where` is ` on node 1` if there are several nodes.
    """
    number = failure.exit_code - 128
    # torch aborts a process that it cannot help any more, and torchrun sends SIGTERM: of these the words tell more.
    is_killed = number > 0 and not (left and number in {SIGABRT, SIGTERM})
    if is_killed:
        detail = f"rank {failure.rank}{where} was killed by signal {number}"
        return FailureCause(failure.exit_code, step, detail, is_echo=number == SIGTERM)
    if left:
        speaker = f"rank {left.rank}{where}: " if where and left.rank is not None else ""
        words = speaker + left.detail
        return FailureCause(left.exit_code, left.step, words, is_echo=bool(ECHO.search(words)))
    words = f"rank {failure.rank}{where}: {last_line[:LONGEST_DETAIL]}"
    return FailureCause(failure.exit_code, step, words, is_echo=bool(ECHO.search(words)))


class CauseElection:
    """What was told about the end of a run, in the order in which it was told, and what is believed."""

    def __init__(self, *, is_chief: bool) -> None:
        """`is_chief`: what is believed here is believed everywhere. Else the chief is given time to say it."""
        self._is_chief = is_chief
        self._told: list[tuple[float, FailureCause]] = []
        self._lost: dict[int, float] = {}

    def tell(self, at_s: float, cause: FailureCause) -> None:
        """Somebody has a cause."""
        self._told.append((at_s, cause))

    def lose(self, at_s: float, node: int) -> None:
        """The connection to a node broke."""
        self._lost[node] = at_s

    def regain(self, node: int) -> None:
        """It is there again, or has left in peace."""
        self._lost.pop(node, None)

    def forgive(self, at_s: float) -> None:
        """Those that are lost get their time anew, from now on."""
        self._lost = dict.fromkeys(self._lost, at_s)

    def verdict(self, now_s: float, step: int) -> FailureCause | None:
        """The cause that is believed; None if there is none yet. `step` is how many steps were done."""
        strong = [cause for _, cause in self._told if not cause.is_echo]
        if strong and (self._is_chief or self._lost or self._has_waited(now_s)):
            return strong[0]
        for node, since_s in self._lost.items():
            # Two signs are enough: it does not answer, and somebody fell over its absence.
            if self._told or now_s - since_s > GONE_S:
                detail = f"node {node} is gone: nothing is heard of it any more"
                return FailureCause(Exit.FAILED, step, detail, is_echo=True, is_death=False)
        return self._told[0][1] if self._told and self._has_waited(now_s) else None

    def _has_waited(self, now_s: float) -> bool:
        return now_s - self._told[0][0] > HEARING_S
