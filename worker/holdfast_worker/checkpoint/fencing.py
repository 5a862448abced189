"""Claims: epochs in the store. A placement claims a number, and the highest one may write.

    claims/000000000003                 who claimed epoch 3, and when
    starts/000000000003-000000000150    epoch 3 began at step 150, and from which checkpoint

A launcher that numbers its placements gives each an epoch; otherwise the placement claims the next one. A claim is
never withdrawn while it is the highest. A store without conditional writes cannot tell two that claim at once apart; a
look at what was written shows it, unless both look before the other writes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from holdfast_worker.clock import now, to_iso
from holdfast_worker.protocol.checkpoint_keys import CLAIMS, claimed_by, epoch_key
from holdfast_worker.protocol.lineage import STARTS, EpochStart, Lineage
from holdfast_worker.storage.base import Missing, Store, StoreError
from holdfast_worker.storage.retry import retry_until


class FencedOut(Exception):
    """A newer placement of the job took over; nothing that this one does counts any more."""


@dataclass(frozen=True, slots=True)
class FencingTokens:
    """The epochs of one job."""

    store: Store

    def acquire_next(self, nonce: str, until_s: float) -> int:
        """An epoch higher than all others, claimed by whoever drew `nonce`."""
        while True:
            epoch = max(self._all(until_s), default=0) + 1
            if not self._put(epoch, nonce, until_s):
                continue
            # Again: of all claims only the highest stays, so that the number may be one that was used before.
            claimed = self._all(until_s)
            if max(claimed) == epoch:
                self._forget([epoch_key(e) for e in claimed if e < epoch], until_s)
                return epoch

    def take(self, epoch: int, nonce: str, until_s: float) -> None:
        """Claim an epoch that the launcher gave. It is ours even if it was claimed before: by an earlier start.

        Raises:
            Fenced: there is a higher one.
        """
        self._put(epoch, nonce, until_s)
        claimed = self._all(until_s)
        _check(epoch, claimed)
        self._forget([epoch_key(e) for e in claimed if e < epoch], until_s)

    def check(self, epoch: int, until_s: float) -> None:
        """Look whether this epoch is still the highest.

        Raises:
            Fenced: it is not.
        """
        _check(epoch, self._all(until_s))

    def lineage(self, until_s: float) -> Lineage:
        """All starts that are recorded."""
        keys = retry_until(lambda: self.store.list(STARTS), until_s)
        return Lineage(frozenset(filter(None, map(EpochStart.of_key, keys))))

    def begin(
        self, epoch: int, step: int, origin: str | None, lineage: Lineage, until_s: float
    ) -> Lineage:
        """The lineage after this epoch began at a step, with the checkpoint `origin`; None: at the beginning."""
        start = EpochStart(epoch, step)
        said = {"checkpoint": origin, "began_at": to_iso(now())}
        retry_until(lambda: self.store.put(start.key, json.dumps(said).encode()), until_s)
        self._forget([s.key for s in lineage.needless(start)], until_s)
        return lineage.begun(start)

    def _put(self, epoch: int, nonce: str, until_s: float) -> bool:
        """Whether this epoch is claimed by us now, and was by nobody before."""
        key = epoch_key(epoch)
        said = {"epoch": epoch, "nonce": nonce, "claimed_at": to_iso(now())}
        data = json.dumps(said).encode()
        retry_until(lambda: self.store.put_if_absent(key, data), until_s)
        # Read what is there: "it is there already" is also what a second try hears when only the answer to the first
        # was lost, and a store without conditional writes never says it.
        try:
            return retry_until(lambda: self.store.get(key), until_s) == data
        except Missing:
            return False

    def _all(self, until_s: float) -> list[int]:
        keys = retry_until(lambda: self.store.list(CLAIMS), until_s)
        return [epoch for epoch in map(claimed_by, keys) if epoch is not None]

    def _forget(self, keys: list[str], until_s: float) -> None:
        """Remove what is of no use any more. Where that fails it costs nothing but a longer listing."""
        with suppress(StoreError):
            for key in keys:
                retry_until(lambda key=key: self.store.delete(key), until_s)  # type: ignore[misc]


def _check(epoch: int, claimed: list[int]) -> None:
    highest = max(claimed, default=0)
    if highest > epoch:
        raise FencedOut(
            f"a newer placement of this job has taken over (epoch {highest} of the checkpoint store): "
            f"this one, of epoch {epoch}, saves nothing more and leaves"
        )
