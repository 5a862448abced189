"""The pointer: which checkpoint was committed last, in one small object that is replaced by compare-and-swap.

    newest.json                 step, epoch and nonce

It only ever goes to a higher epoch, or to a later step of the same one. So a placement that was replaced finds out by it even
if its successor took over between its last look at the claims and its commit. To readers it is a hint: a bucket may list a
new object late, but what the pointer names is there. What counts is the newest commit on the lineage that can be verified.
"""

from __future__ import annotations

import json
import time
from typing import Final

from holdfast_worker.claims import Fenced
from holdfast_worker.names import Name
from holdfast_worker.patience import patiently
from holdfast_worker.stores import Missing, Store, Unreachable

KEY: Final = "newest.json"


class Pointer:
    """The pointer of one job."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def look(self, until_s: float) -> Name | None:
        """What it names; None if there is none, or if it cannot be read."""
        return _parse(self._find(until_s))

    def advance(self, name: Name, until_s: float) -> None:
        """Have it name this checkpoint, unless it names a later one of the same epoch.

        Raises:
            Fenced: it names one of a newer placement.
            Unreachable: others have changed it at each try until now.
        """
        while True:
            found = self._find(until_s)
            there = _parse(found)
            if there and there.epoch > name.epoch:
                raise Fenced(
                    f"a newer placement of this job has saved step {there.step} (epoch {there.epoch}): "
                    f"this one, of epoch {name.epoch}, saves nothing more and leaves"
                )
            if there and (there.epoch, there.step) >= (name.epoch, name.step):
                return
            body = {"step": name.step, "epoch": name.epoch, "nonce": name.nonce}
            new = json.dumps(body).encode()
            if patiently(lambda old=found, new=new: self._store.swap(KEY, old, new), until_s):  # type: ignore[misc]
                return
            if time.monotonic() > until_s:
                raise Unreachable(f"{KEY} could not be replaced")

    def _find(self, until_s: float) -> bytes | None:
        try:
            return patiently(lambda: self._store.get(KEY), until_s)
        except Missing:
            return None


def _parse(data: bytes | None) -> Name | None:
    try:
        body = json.loads(data or b"")
        return Name(int(body["step"]), int(body["epoch"]), str(body["nonce"]))
    except (ValueError, KeyError, TypeError):
        return None
