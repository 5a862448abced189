"""Requests of ranks for a new process group, and the wrappers' answers.

They are files in the run directory of each node.

Standard library only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from holdfast_worker.run_dir import GROUP_FILE, RunDir, read_json

POLL_S: Final = 0.005
"""Interval at which a rank looks for an answer.
A lower value burns a core; a higher value delays the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A rank waits for a new process group."""

    rank: int
    generation: int
    """Number of process groups before the requested one."""
    address: str
    """`host:port` of a store that this rank offers to the new group."""
    is_new: bool
    """Whether the rank is a new process."""
    moves: bool = False
    """Whether all ranks have left their group between two steps, so that some can move to another node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """The decision of the leader about a process group."""

    generation: int
    address: str = ""
    """`host:port` of its store; empty while ranks are missing."""
    cause: str = ""
    """Why ranks were lost."""
    hosted: Sequence[int] = ()
    """Missing nodes whose ranks run on others."""

    @property
    def is_formed(self) -> bool:
        """Whether all ranks are there."""
        return bool(self.address)


class GroupFiles:
    """The requests and the answer in the run directory of a node."""

    def __init__(self, run_dir: RunDir) -> None:
        self._folder = run_dir.path / "ranks"

    def request(self, request: GroupRequest) -> None:
        """Write the request of a rank."""
        _replace(self._folder / f"rank-{request.rank}.wait", json.dumps(asdict(request)))

    def announce_ready(self, rank: int) -> None:
        """Write that a new rank waits for the first decision of the leader."""
        self.request(GroupRequest(rank=rank, generation=0, address="", is_new=True))

    def requests(self) -> list[GroupRequest]:
        """The requests of this node's ranks."""
        files = sorted(self._folder.glob("rank-*.wait"))
        found = (read_json(file) for file in files)
        return [GroupRequest(**raw) for raw in found if raw is not None]  # type: ignore[arg-type]

    def answer(self, answer: GroupAnswer) -> None:
        """Write the answer for this node's ranks."""
        _replace(self._folder / GROUP_FILE, json.dumps(asdict(answer)))

    def read_answer(self) -> GroupAnswer | None:
        """The newest answer; None without one."""
        raw = read_json(self._folder / GROUP_FILE)
        if raw is None:
            return None
        return GroupAnswer(**{**raw, "hosted": tuple(raw["hosted"])})  # type: ignore[arg-type]

    def generation(self) -> int:
        """The generation of the next group that a new rank can join."""
        answer = self.read_answer()
        return 0 if answer is None else answer.generation + answer.is_formed

    def wait_for_decision(self, on_poll: Callable[[], None]) -> None:
        """Wait until the wrapper has written a decision of the leader."""
        while self.read_answer() is None:
            on_poll()
            time.sleep(POLL_S)

    def wait(self, generation: int, on_poll: Callable[[], None]) -> GroupAnswer:
        """Wait until the group of this generation, or a later one, is formed.

        The wrapper ends a rank that waits in vain.
        """
        while True:
            answer = self.read_answer()
            if answer and answer.is_formed and answer.generation >= generation:
                return answer
            on_poll()
            time.sleep(POLL_S)


def _replace(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(text)
    draft.replace(file)
