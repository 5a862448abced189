"""The quarantine of corrupt checkpoints, and the latest pointer.

    flawed/step-150-e2-9f31c2d40001.json      why a checkpoint is corrupt, and when that was found
    newest.json                               step, epoch and nonce of the newest commit

Quarantine: checkpoints are read in place. A start that finds corruption midway and has no other checkpoint has also
lost its initial state. It exits, and the entry prevents the next start from reading the same checkpoint.

Latest pointer: a small object that is replaced by compare-and-swap, only by a higher epoch or a later step of the same epoch. It
fences out a replaced attempt even if the successor took over between the last check of the claims and the commit. A
pointer to a missing commit is wrong: it is replaced, and the claims alone decide whether this attempt was fenced out. For
readers it is a hint, because a listing may show a new object late. The newest verifiable commit on the lineage counts.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from holdfast_worker.checkpoint.fencing import FencedOut, FencingTokens
from holdfast_worker.clock import now, to_iso
from holdfast_worker.protocol.checkpoint_keys import (
    FLAWED,
    CheckpointName,
    parse_quarantine_key,
    quarantine_key,
)
from holdfast_worker.storage.base import ObjectNotFound, Store, StoreUnreachable
from holdfast_worker.storage.retry import retry_until


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Checkpoints of one job that are known to be corrupt."""

    store: Store

    def reasons(self, until_s: float) -> dict[CheckpointName, str]:
        """Reasons by quarantined checkpoint."""
        keys = retry_until(lambda: self.store.list(FLAWED), until_s)
        names = {key: parse_quarantine_key(key) for key in keys}
        return {name: self._read_reason(key, until_s) for key, name in names.items() if name}

    def mark(self, name: CheckpointName, reason: str, until_s: float) -> None:
        """Quarantine a checkpoint for all later starts."""
        body = {"reason": reason, "found_at": to_iso(now())}
        retry_until(
            lambda: self.store.put(quarantine_key(name), json.dumps(body).encode()), until_s
        )

    def clear(self, name: CheckpointName, until_s: float) -> None:
        """Remove a checkpoint from the quarantine, because it was deleted or is intact again."""
        retry_until(lambda: self.store.delete(quarantine_key(name)), until_s)

    def _read_reason(self, key: str, until_s: float) -> str:
        try:
            return str(json.loads(retry_until(lambda: self.store.get(key), until_s))["reason"])
        except (ObjectNotFound, ValueError, KeyError, TypeError):
            return "quarantined by an earlier start"


POINTER_KEY: Final = "newest.json"


class LatestPointer:
    """The latest pointer of one job."""

    def __init__(self, store: Store, claims: FencingTokens) -> None:
        self._store = store
        self._tokens = claims

    def read(self, until_s: float) -> CheckpointName | None:
        """The checkpoint that it names, which may not exist; None without a readable pointer."""
        return _parse(self._find(until_s))

    def is_committed(self, name: CheckpointName, until_s: float) -> bool:
        """Whether the commit of a checkpoint exists, even if a listing does not show it yet."""
        try:
            retry_until(lambda: self._store.get(name.commit_key), until_s)
        except ObjectNotFound:
            return False
        return True

    def advance(self, name: CheckpointName, until_s: float) -> None:
        """Point to this checkpoint, unless the pointer names a later one of the same epoch.

        Raises:
            FencedOut: it names a newer attempt's checkpoint; or it is wrong, and a newer attempt has claimed its epoch.
            StoreUnreachable: other processes changed the pointer at each try until the deadline.
        """
        while True:
            found = self._find(until_s)
            there = _parse(found)
            if there and (there.epoch, there.step) >= (name.epoch, name.step):
                if self.is_committed(there, until_s):
                    _check(there, name)
                    return
                self._tokens.check(name.epoch, until_s)
            body = {"step": name.step, "epoch": name.epoch, "nonce": name.nonce}
            new = json.dumps(body).encode()
            if retry_until(partial(self._store.swap, POINTER_KEY, found, new), until_s):
                return
            if time.monotonic() > until_s:
                raise StoreUnreachable(f"{POINTER_KEY} could not be replaced before the deadline")

    def _find(self, until_s: float) -> bytes | None:
        try:
            return retry_until(lambda: self._store.get(POINTER_KEY), until_s)
        except ObjectNotFound:
            return None


def _check(there: CheckpointName, name: CheckpointName) -> None:
    if there.epoch > name.epoch:
        raise FencedOut(
            f"a newer attempt of this job has saved step {there.step} (epoch {there.epoch}): "
            f"this attempt, of epoch {name.epoch}, stops saving and exits"
        )


def _parse(data: bytes | None) -> CheckpointName | None:
    try:
        body = json.loads(data or b"")
        name = CheckpointName(int(body["step"]), int(body["epoch"]), str(body["nonce"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return CheckpointName.parse(str(name))
