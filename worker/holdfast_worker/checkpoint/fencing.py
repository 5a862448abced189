"""Fencing tokens: epochs in the checkpoint store.

An attempt claims an epoch, and the highest epoch may write.

    claims/000000000003                 the start that claimed epoch 3, and the time
    starts/000000000003-000000000150    epoch 3 began at step 150, and from which checkpoint

A launcher that numbers attempts assigns their epochs; otherwise an attempt claims the next one. The highest claim is never
withdrawn. Without conditional writes, the store cannot distinguish two simultaneous claims. Reading the object back
reveals the winner, unless both attempts read before the other one writes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from holdfast_worker.clock import now, to_iso
from holdfast_worker.protocol.checkpoint_keys import CLAIMS, epoch_key, parse_epoch_key
from holdfast_worker.protocol.lineage import STARTS, EpochStart, Lineage
from holdfast_worker.storage.base import ObjectNotFound, Store, StoreError
from holdfast_worker.storage.retry import retry_until


class FencedOut(Exception):
    """A newer attempt of the job took over; this one may write nothing more."""


@dataclass(frozen=True, slots=True)
class FencingTokens:
    """The epochs of one job."""

    store: Store

    def acquire_next(self, nonce: str, until_s: float) -> int:
        """Claim an epoch higher than all others for the start that drew `nonce`."""
        while True:
            epoch = max(self._list_epochs(until_s), default=0) + 1
            if not self._try_claim(epoch, nonce, until_s):
                continue
            # List again: only the highest claim is kept, so this number may have been used before. A listing may have neither this
            # claim nor the higher one that has just replaced it.
            claimed = self._list_epochs(until_s)
            if max(claimed, default=0) == epoch:
                self._delete([epoch_key(e) for e in claimed if e < epoch], until_s)
                return epoch

    def claim(self, epoch: int, nonce: str, until_s: float) -> None:
        """Claim the epoch that the launcher assigned.

        An earlier start of the same attempt may already have claimed it.

        Raises:
            FencedOut: a higher epoch exists.
        """
        self._try_claim(epoch, nonce, until_s)
        claimed = self._list_epochs(until_s)
        _check(epoch, claimed)
        self._delete([epoch_key(e) for e in claimed if e < epoch], until_s)

    def check(self, epoch: int, until_s: float) -> None:
        """Check that this epoch is still the highest.

        Raises:
            FencedOut: a higher epoch exists.
        """
        _check(epoch, self._list_epochs(until_s))

    def lineage(self, until_s: float) -> Lineage:
        """The lineage of all recorded starts."""
        keys = retry_until(lambda: self.store.list(STARTS), until_s)
        return Lineage(frozenset(filter(None, map(EpochStart.of_key, keys))))

    def record_start(
        self, epoch: int, step: int, origin: str | None, lineage: Lineage, until_s: float
    ) -> Lineage:
        """Record the step and checkpoint at which this epoch began; return the new lineage."""
        start = EpochStart(epoch, step)
        body = {"checkpoint": origin, "began_at": to_iso(now())}
        retry_until(lambda: self.store.put(start.key, json.dumps(body).encode()), until_s)
        self._delete([s.key for s in lineage.redundant_starts(start)], until_s)
        return lineage.with_start(start)

    def _try_claim(self, epoch: int, nonce: str, until_s: float) -> bool:
        """Whether this start now holds the claim on this epoch, and none existed before."""
        key = epoch_key(epoch)
        body = {"epoch": epoch, "nonce": nonce, "claimed_at": to_iso(now())}
        data = json.dumps(body).encode()
        retry_until(lambda: self.store.put_if_absent(key, data), until_s)
        # Read the object back: a retry after a lost response also finds an existing key, and a store without
        # conditional writes never reports that it exists.
        try:
            return retry_until(lambda: self.store.get(key), until_s) == data
        except ObjectNotFound:
            return False

    def _list_epochs(self, until_s: float) -> list[int]:
        keys = retry_until(lambda: self.store.list(CLAIMS), until_s)
        return [epoch for epoch in map(parse_epoch_key, keys) if epoch is not None]

    def _delete(self, keys: list[str], until_s: float) -> None:
        """Delete obsolete objects. A failure costs only a longer listing."""
        with suppress(StoreError):
            for key in keys:
                retry_until(lambda key=key: self.store.delete(key), until_s)  # type: ignore[misc]


def _check(epoch: int, claimed: list[int]) -> None:
    highest = max(claimed, default=0)
    if highest > epoch:
        raise FencedOut(
            f"a newer attempt of this job has taken over (epoch {highest} in the checkpoint store): "
            f"this attempt, of epoch {epoch}, stops saving and exits"
        )
