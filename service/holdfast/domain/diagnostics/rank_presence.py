"""Ranks that appear in the logs of an attempt, missing ranks, and its start. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.domain.diagnostics.hints import LogExcerpt
from holdfast.domain.events import Event, TrainingStarted

_BANNER: Final = re.compile(
    r"\[rank[ -]?(\d+)(?:/(\d+))?\](?:.*?\bWORLD_SIZE=(\d+))?", re.IGNORECASE
)
"""Line prefixes of scripts: `[RANK 3] WORLD_SIZE=8`, `[rank 3/8]`, and `[rank3]:` of torch."""
_START: Final = re.compile(
    r"\d\d:\d\d:\d\d (?:allocation|rendezvous|preflight|staging|probe|launch): "
    r"|\[rank[ -]?\d+\] WORLD_SIZE=\d",
    re.IGNORECASE,
)
"""First words of a line of the batch script's phases, and of a rank that has started."""
MAX_RANKS: Final = 100_000
"""Upper bound of rank numbers; larger numbers in logs are ignored."""


@dataclass(frozen=True, slots=True)
class RankPresence:
    """Ranks of an attempt that appear in its logs."""

    attempt: int
    world_size: int | None
    """None if unknown."""
    seen: tuple[tuple[int, int], ...]
    """Ranks in ascending order, each with the node of its log."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Expected ranks without log lines, in ascending order."""
        return tuple(sorted(set(range(self.world_size or 0)) - {rank for rank, _ in self.seen}))


def observed_ranks(
    attempt: int, facts: Sequence[Event], logs: Iterable[LogExcerpt], expected: int | None
) -> RankPresence:
    """Ranks seen in the logs of an attempt.

    `expected` is the requested number of ranks; None if it follows from the machines.
    """
    seen: dict[int, int] = {}
    logged_size: int | None = None
    for log in logs:
        if log.rank is not None and log.text.strip():
            seen.setdefault(log.rank, log.node)
        for found in _BANNER.finditer(log.text):
            rank, of, world = (int(word) if word else None for word in found.groups())
            logged_size = logged_size or world or of
            if rank is not None and rank < MAX_RANKS:
                seen.setdefault(rank, log.node)
    trained = next(
        (f.world_size for f in facts if isinstance(f, TrainingStarted) and f.attempt == attempt),
        None,
    )
    size = trained or logged_size or expected
    return RankPresence(
        attempt, min(size, MAX_RANKS) if size else None, tuple(sorted(seen.items()))
    )


def start_lines(logs: Iterable[LogExcerpt]) -> Iterator[str]:
    """Lines of batch script and ranks about their start, each after its node and rank."""
    for log in logs:
        source = f"node {log.node}" + ("" if log.rank is None else f", rank {log.rank}")
        for line in log.text.splitlines():
            if _START.match(line):
                yield f"attempt {log.attempt}, {source}: {line}"
