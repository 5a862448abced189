"""The roll of an attempt: which ranks were heard of in its logs, and which were not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.domain.diagnostics.hints import Printed
from holdfast.domain.events import Event, TrainingStarted

_BANNER: Final = re.compile(
    r"\[rank[ -]?(\d+)(?:/(\d+))?\](?:.*?\bWORLD_SIZE=(\d+))?", re.IGNORECASE
)
"""As scripts begin their lines: `[RANK 3] WORLD_SIZE=8`, `[rank 3/8]`, torch's `[rank3]:`."""
MOST_RANKS: Final = 100_000
"""A number beyond that is none of a rank."""


@dataclass(frozen=True, slots=True)
class RankPresence:
    """Who was heard of."""

    attempt: int
    world_size: int | None
    """None where nobody said it."""
    seen: tuple[tuple[int, int], ...]
    """Ranks in order, each with the node in whose log it was."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Those that were expected and not heard of, in order."""
        return tuple(sorted(set(range(self.world_size or 0)) - {rank for rank, _ in self.seen}))


def roll(
    attempt: int, facts: Sequence[Event], printed: Iterable[Printed], expected: int | None
) -> RankPresence:
    """Who was heard of in an attempt; `expected` is how many ranks were asked for, None where that follows from the machines."""
    seen: dict[int, int] = {}
    told: int | None = None
    for log in printed:
        if log.rank is not None and log.text.strip():
            seen.setdefault(log.rank, log.node)
        for found in _BANNER.finditer(log.text):
            rank, of, world = (int(word) if word else None for word in found.groups())
            told = told or world or of
            if rank is not None and rank < MOST_RANKS:
                seen.setdefault(rank, log.node)
    trained = next(
        (f.world_size for f in facts if isinstance(f, TrainingStarted) and f.attempt == attempt),
        None,
    )
    size = trained or told or expected
    return RankPresence(
        attempt, min(size, MOST_RANKS) if size else None, tuple(sorted(seen.items()))
    )
