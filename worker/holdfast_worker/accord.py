"""Accord: what a store refuses to one rank is refused to all, so that none waits for another that has given up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast_worker.checkpoint import Damaged, Foreign, Withheld
from holdfast_worker.ranks import Ranks
from holdfast_worker.stores import StoreError

REFUSALS: Final = (StoreError, Foreign)
"""What another try may change, and what it cannot."""

FLAWS: Final = (Damaged, Withheld)
"""Of a checkpoint that is worth nothing, and of one that may be sound."""


@contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """What all ranks do, or one of them for all, and none of them has done if it fails on any.

    Nothing but these two may end it on one rank alone.

    Raises:
        StoreError: what the store said to the lowest rank that it failed; the same on all ranks.
        Foreign: the same, where that is a checkpoint that is not for this version or this job.
        Damaged: what the lowest rank found that cannot use a checkpoint; the same on all ranks.
        Withheld: the same, where the store does not give an object of it.
    """
    complaint = flaw = ""
    try:
        yield
    except StoreError as error:
        complaint = f"{isinstance(error, Foreign):d}{str(error) or type(error).__name__}"
    except Damaged as damage:
        flaw = f"{isinstance(damage, Withheld):d}{damage}"
    complaint = ranks.first_to_say(complaint)
    if complaint:
        raise REFUSALS[int(complaint[0])](complaint[1:])
    flaw = ranks.first_to_say(flaw)
    if flaw:
        raise FLAWS[int(flaw[0])](flaw[1:])
