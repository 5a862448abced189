"""Flaws: checkpoints of which bytes proved damaged, so that no later start begins to read them.

    flawed/step-150-e2-9f31c2d40001.json      what is wrong with it, and when that was found

What is read goes straight to its place. A start that finds no other checkpoint after one proved damaged midway has lost the
state that it began with, too; it leaves, and the next one knows by this not to try the same again.

The pointer: which checkpoint was committed last, in one small object that is replaced by compare-and-swap.

    newest.json                 step, epoch and nonce

It only ever goes to a higher epoch, or to a later step of the same one. So a placement that was replaced finds out by it even
if its successor took over between its last look at the claims and its commit. A pointer whose commit does not exist is wrong: it is
replaced, and the claims alone decide whether this placement was. To readers it is a hint: a bucket may list a
new object late, but what the pointer names is there. What counts is the newest commit on the lineage that can be verified.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Final

from holdfast_worker.checkpoint.fencing import FencedOut, FencingTokens
from holdfast_worker.clock import now, to_iso
from holdfast_worker.protocol.checkpoint_keys import (
    FLAWED,
    CheckpointName,
    flawed_by,
    quarantine_key,
)
from holdfast_worker.storage.base import Missing, Store, Unreachable
from holdfast_worker.storage.retry import retry_until


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What is known against the checkpoints of one job."""

    store: Store

    def known(self, until_s: float) -> dict[CheckpointName, str]:
        """Why each of them cannot be used."""
        keys = retry_until(lambda: self.store.list(FLAWED), until_s)
        names = {key: flawed_by(key) for key in keys}
        return {name: self._why(key, until_s) for key, name in names.items() if name}

    def mark(self, name: CheckpointName, why: str, until_s: float) -> None:
        """Let all later starts know."""
        said = {"reason": why, "found_at": to_iso(now())}
        retry_until(
            lambda: self.store.put(quarantine_key(name), json.dumps(said).encode()), until_s
        )

    def clear(self, name: CheckpointName, until_s: float) -> None:
        """Forget what is known against one: it is gone, or sound again."""
        retry_until(lambda: self.store.delete(quarantine_key(name)), until_s)

    def _why(self, key: str, until_s: float) -> str:
        try:
            return str(json.loads(retry_until(lambda: self.store.get(key), until_s))["reason"])
        except (Missing, ValueError, KeyError, TypeError):
            return "an earlier start found it damaged"


KEY: Final = "newest.json"


class LatestPointer:
    """The pointer of one job."""

    def __init__(self, store: Store, claims: FencingTokens) -> None:
        self._store = store
        self._claims = claims

    def read(self, until_s: float) -> CheckpointName | None:
        """What it names; None if there is none, or if it cannot be read. Whether that exists is for the caller to find out."""
        return _parse(self._find(until_s))

    def is_committed(self, name: CheckpointName, until_s: float) -> bool:
        """Whether the commit of a checkpoint exists, also where a listing does not show it yet."""
        try:
            retry_until(lambda: self._store.get(name.commit_key), until_s)
        except Missing:
            return False
        return True

    def advance(self, name: CheckpointName, until_s: float) -> None:
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
            if retry_until(lambda old=found, new=new: self._store.swap(KEY, old, new), until_s):  # type: ignore[misc]
                return
            if time.monotonic() > until_s:
                raise Unreachable(f"{KEY} could not be replaced")

    def _find(self, until_s: float) -> bytes | None:
        try:
            return retry_until(lambda: self._store.get(KEY), until_s)
        except Missing:
            return None


def _check(there: CheckpointName, name: CheckpointName) -> None:
    if there.epoch > name.epoch:
        raise FencedOut(
            f"a newer placement of this job has saved step {there.step} (epoch {there.epoch}): "
            f"this one, of epoch {name.epoch}, saves nothing more and leaves"
        )


def _parse(data: bytes | None) -> CheckpointName | None:
    try:
        body = json.loads(data or b"")
        name = CheckpointName(int(body["step"]), int(body["epoch"]), str(body["nonce"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return CheckpointName.parse(str(name))
