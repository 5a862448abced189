"""What somebody did, as the audit log keeps it: a chain in which no row can change without all after it changing, too.

The hash of a row is SHA-256 over the hash of the row before and the canonical JSON of the row (keys sorted, no spaces,
ASCII), so that anybody with a copy can check it with a few lines of any language.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

BEGINNING: Final = "0" * 64
"""What stands for the hash before the first row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """Who did something, and by which request."""

    name: str
    token_id: str | None = None
    address: str | None = None
    request_id: str | None = None

    def did(
        self,
        action: str,
        target: str,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> AuditAction:
        """A deed of theirs."""
        return AuditAction(doer=self, action=action, target=target, before=before, after=after)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditAction:
    """One thing that somebody did."""

    doer: Actor
    action: str
    """What, such as `job.submit` or `token.revoke`."""
    target: str
    """To what: the id of a job, the name of a user, ..."""
    before: Mapping[str, Any] | None = None
    """How it was; None where there was nothing."""
    after: Mapping[str, Any] | None = None
    """How it is since; None where there is nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """A row of the audit log."""

    seq: int
    at: datetime
    deed: AuditAction
    previous_hash: str
    hash: str
    unreadable: tuple[str, ...] = ()
    """Columns that hold a value of another type than the one they are written with, for which something else stands here."""

    def computed(self) -> str:
        """The hash that this row should have."""
        return digest(self.previous_hash, self.seq, self.at, self.deed)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHead:
    """The newest row, as somebody keeps it elsewhere."""

    seq: int = 0
    hash: str = BEGINNING

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    def expired(self, doer: Actor) -> AuditAction:
        """The deed that removes all rows up to this one."""
        return doer.did("audit.expire", str(self.seq), after={"seq": self.seq, "hash": self.hash})


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainVerification:
    """What a look at the whole chain found."""

    head: ChainHead
    """The newest row that is sound."""
    broken_seq: int | None = None
    """The first row that is not; None where all are."""
    problem: str = ""
    """What is wrong with it, as one sentence; empty where nothing is."""
    anchor: ChainHead = field(default_factory=ChainHead)
    """The last row that was removed by retention; the beginning where none was."""


def columns(deed: AuditAction) -> dict[str, Any]:
    """The columns of a row that hold a deed. The hash of the row covers them all."""
    return {
        "actor": deed.doer.name,
        "token_id": deed.doer.token_id,
        "address": deed.doer.address,
        "request_id": deed.doer.request_id,
        "action": deed.action,
        "target": deed.target,
        "before": deed.before,
        "after": deed.after,
    }


def digest(previous: str, seq: int, at: datetime, deed: AuditAction) -> str:
    """The hash of a row after the one whose hash is `previous`."""
    row = {
        "seq": seq,
        "at": at.astimezone(UTC).isoformat(timespec="microseconds"),
        **columns(deed),
    }
    text = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def verify(
    entries: Iterable[AuditEntry], kept: Iterable[ChainHead] = (), anchor: ChainHead = ChainHead()
) -> ChainVerification:
    """Whether `entries`, all there are by `seq`, are those that were written; `kept` are heads from elsewhere.

    A tail that was cut off, and a chain that was rewritten from some row on, look whole; only a kept head tells. The chain begins
    after `anchor`, which a row of the chain has to name: the log cannot lose its beginning without a record.
    """
    heads = [*kept]
    verdict = _walk(
        entries, {head.seq: head.hash for head in heads if head.seq > anchor.seq}, anchor
    )
    if verdict.broken_seq is None and any(h.seq == anchor.seq and h != anchor for h in heads):
        problem = f"row {anchor.seq}, the last one that retention removed, is not the one of the kept head"
        return ChainVerification(head=anchor, broken_seq=anchor.seq, problem=problem, anchor=anchor)
    return replace(verdict, anchor=anchor)


def _walk(
    entries: Iterable[AuditEntry], waiting: dict[int, str], anchor: ChainHead
) -> ChainVerification:
    sound, is_named = anchor, not anchor.seq
    named = anchor.expired(Actor(name=""))
    for entry in entries:
        is_named |= (entry.deed.action, entry.deed.after) == (named.action, named.after)
        if problem := _problem(entry, sound, waiting.pop(entry.seq, None)):
            return ChainVerification(head=sound, broken_seq=entry.seq, problem=problem)
        sound = ChainHead(seq=entry.seq, hash=entry.hash)
    if waiting:
        problem = f"rows {sound.seq + 1} to {max(waiting)} are gone: the kept head has them"
        return ChainVerification(head=sound, broken_seq=sound.seq + 1, problem=problem)
    if not is_named:
        problem = f"rows 1 to {anchor.seq} are gone, and no row records that retention removed them"
        return ChainVerification(head=anchor, broken_seq=anchor.seq, problem=problem)
    return ChainVerification(head=sound)


def _problem(entry: AuditEntry, before: ChainHead, kept: str | None) -> str:
    if entry.seq != before.seq + 1:
        return f"row {before.seq + 1} is missing: after row {before.seq} comes row {entry.seq}"
    if entry.unreadable:
        columns = ", ".join(entry.unreadable)
        return f"row {entry.seq} was changed: it holds values of another type than it was written with, in {columns}"
    if entry.hash != _computed(entry):
        return f"row {entry.seq} was changed: its content does not have the hash that it carries"
    if entry.previous_hash != before.hash:
        return f"row {entry.seq} does not follow row {before.seq}: one of them was put in, moved or made anew"
    if kept not in (None, entry.hash):
        return f"row {entry.seq} is not the one of the kept head: the log was made anew from here or before"
    return ""


def _computed(entry: AuditEntry) -> str | None:
    """The hash that a row should have; None where its content has none, such as JSON that is nested too deeply."""
    try:
        return entry.computed()
    except (TypeError, ValueError, RecursionError):
        return None
