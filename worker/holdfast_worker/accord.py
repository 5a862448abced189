"""Accord: what a store refuses to one rank is refused to all, so that none waits for another that has given up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast_worker.checkpoint import Damaged
from holdfast_worker.ranks import Ranks
from holdfast_worker.stores import StoreError


@contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """What all ranks do, or one of them for all, and none of them has done if it fails on any.

    Nothing but these two may end it on one rank alone.

    Raises:
        StoreError: what the store said to the lowest rank that it failed; the same on all ranks.
        Damaged: what the lowest rank found that cannot use a checkpoint; the same on all ranks.
    """
    complaint = flaw = ""
    try:
        yield
    except StoreError as error:
        complaint = str(error) or type(error).__name__
    except Damaged as damage:
        flaw = str(damage)
    complaint = ranks.first_to_say(complaint)
    if complaint:
        raise StoreError(complaint)
    flaw = ranks.first_to_say(flaw)
    if flaw:
        raise Damaged(flaw)
