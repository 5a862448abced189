"""The pointer: which checkpoint was committed last, in one small object that is replaced by compare-and-swap.

    newest.json                 step, epoch and nonce

It only ever goes to a higher epoch, or to a later step of the same one. So a placement that was replaced finds out by it even
if its successor took over between its last look at the claims and its commit. A pointer whose commit does not exist is wrong: it is
replaced, and the claims alone decide whether this placement was. To readers it is a hint: a bucket may list a
new object late, but what the pointer names is there. What counts is the newest commit on the lineage that can be verified.
"""

from __future__ import annotations

import json
import time
from typing import Final

from holdfast_worker.claims import Claims, Fenced
from holdfast_worker.names import Name
from holdfast_worker.patience import patiently
from holdfast_worker.stores import Missing, Store, Unreachable

KEY: Final = "newest.json"


class Pointer:
    """The pointer of one job."""

    def __init__(self, store: Store, claims: Claims) -> None:
        self._store = store
        self._claims = claims

    def look(self, until_s: float) -> Name | None:
        """What it names; None if there is none, or if it cannot be read. Whether that exists is for the caller to find out."""
        return _parse(self._find(until_s))

    def is_committed(self, name: Name, until_s: float) -> bool:
        """Whether the commit of a checkpoint exists, also where a listing does not show it yet."""
        try:
            patiently(lambda: self._store.get(name.commit_key), until_s)
        except Missing:
            return False
        return True

    def advance(self, name: Name, until_s: float) -> None:
        """Have it name this checkpoint, unless it names a later one of the same epoch.

        Raises:
            Fenced: it names one of a newer placement; or it is wrong, and a newer placement has claimed its epoch.
            Unreachable: others have changed it at each try until now.
        """
        while True:
            found = self._find(until_s)
            there = _parse(found)
            if there and (there.epoch, there.step) >= (name.epoch, name.step):
                if self.is_committed(there, until_s):
                    _check(there, name)
                    return
                self._claims.check(name.epoch, until_s)
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


def _check(there: Name, name: Name) -> None:
    if there.epoch > name.epoch:
        raise Fenced(
            f"a newer placement of this job has saved step {there.step} (epoch {there.epoch}): "
            f"this one, of epoch {name.epoch}, saves nothing more and leaves"
        )


def _parse(data: bytes | None) -> Name | None:
    try:
        body = json.loads(data or b"")
        name = Name(int(body["step"]), int(body["epoch"]), str(body["nonce"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return Name.parse(str(name))
