"""Accord: what a store refuses to one rank is refused to all, so that none waits for another that has given up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast_worker.ranks import Ranks
from holdfast_worker.stores import StoreError


@contextmanager
def together(ranks: Ranks) -> Iterator[None]:
    """What all ranks do, or one of them for all, and none of them has done if the store fails any.

    Nothing but a `StoreError` may end it on one rank alone.

    Raises:
        StoreError: what the store said to the lowest rank that it failed; the same on all ranks.
    """
    complaint = ""
    try:
        yield
    except StoreError as error:
        # Never without words: that would be heard as success, here too.
        complaint = str(error) or type(error).__name__
    first = ranks.first_to_say(complaint)
    if first:
        raise StoreError(first)
