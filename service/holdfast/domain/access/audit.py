"""The audit log: user actions in a hash chain; a change invalidates all later rows.

The hash of a row is SHA-256 over the previous row's hash and the row's canonical JSON (sorted keys, no spaces, ASCII), so that a
copy can be verified with a few lines in any language.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

GENESIS_HASH: Final = "0" * 64
"""Hash that precedes the first row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """The user who acted, and the request."""

    name: str
    token_id: str | None = None
    address: str | None = None
    request_id: str | None = None

    def audit_action(
        self,
        action: str,
        target: str,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> AuditAction:
        """An action of this actor."""
        return AuditAction(actor=self, action=action, target=target, before=before, after=after)


BACKUP: Final = Actor(name="(backup)")
"""The actor of complete backups, which are made without a user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditAction:
    """One recorded user action."""

    actor: Actor
    action: str
    """Name of the action, such as `job.submit` or `token.revoke`."""
    target: str
    """Object of the action: a job id, a user name, ..."""
    before: Mapping[str, Any] | None = None
    """State before; None if it did not exist."""
    after: Mapping[str, Any] | None = None
    """State after; None if it no longer exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """A row of the audit log."""

    seq: int
    at: datetime
    audit_action: AuditAction
    previous_hash: str
    hash: str
    unreadable: tuple[str, ...] = ()
    """Columns whose stored value has an unexpected type and is replaced here."""

    def compute_hash(self) -> str:
        """The hash that this row should have."""
        return digest(self.previous_hash, self.seq, self.at, self.audit_action)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHead:
    """The newest row, stored outside the database."""

    seq: int = 0
    hash: str = GENESIS_HASH

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    def expiry_action(self, actor: Actor) -> AuditAction:
        """The action that removes all rows up to this one."""
        return actor.audit_action(
            "audit.expire", str(self.seq), after={"seq": self.seq, "hash": self.hash}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainVerification:
    """Result of verifying the whole chain."""

    head: ChainHead
    """The newest valid row."""
    broken_seq: int | None = None
    """The first invalid row; None if all are valid."""
    problem: str = ""
    """Description of the problem; empty without one."""
    anchor: ChainHead = field(default_factory=ChainHead)
    """The last row removed by retention; genesis if none was."""


def action_columns(action: AuditAction) -> dict[str, Any]:
    """Columns of a row that describe the action; its hash covers them all."""
    return {
        "actor": action.actor.name,
        "token_id": action.actor.token_id,
        "address": action.actor.address,
        "request_id": action.actor.request_id,
        "action": action.action,
        "target": action.target,
        "before": action.before,
        "after": action.after,
    }


def digest(previous: str, seq: int, at: datetime, action: AuditAction) -> str:
    """Hash of a row that follows the row with hash `previous`."""
    row = {
        "seq": seq,
        "at": at.astimezone(UTC).isoformat(timespec="microseconds"),
        **action_columns(action),
    }
    text = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def verify(
    entries: Iterable[AuditEntry], kept: Iterable[ChainHead] = (), anchor: ChainHead = ChainHead()
) -> ChainVerification:
    """Verify all `entries`, ordered by `seq`; `kept` are externally stored heads.

    A truncated tail and a chain rewritten from some row on look valid; only a stored head reveals them. The chain begins after
    `anchor`, which a row of the chain must name: the beginning cannot be removed without a record.
    """
    heads = [*kept]
    verification = _verify_entries(
        entries, {head.seq: head.hash for head in heads if head.seq > anchor.seq}, anchor
    )
    if verification.broken_seq is None and any(h.seq == anchor.seq and h != anchor for h in heads):
        problem = (
            f"row {anchor.seq}, the last one that retention removed, does not match the kept head"
        )
        return ChainVerification(head=anchor, broken_seq=anchor.seq, problem=problem, anchor=anchor)
    return replace(verification, anchor=anchor)


def _verify_entries(
    entries: Iterable[AuditEntry], waiting: dict[int, str], anchor: ChainHead
) -> ChainVerification:
    sound, is_named = anchor, not anchor.seq
    named = anchor.expiry_action(Actor(name=""))
    for entry in entries:
        is_named |= (entry.audit_action.action, entry.audit_action.after) == (
            named.action,
            named.after,
        )
        if problem := _problem(entry, sound, waiting.pop(entry.seq, None)):
            return ChainVerification(head=sound, broken_seq=entry.seq, problem=problem)
        sound = ChainHead(seq=entry.seq, hash=entry.hash)
    if waiting:
        problem = f"rows {sound.seq + 1} to {max(waiting)} are missing: the kept head includes them"
        return ChainVerification(head=sound, broken_seq=sound.seq + 1, problem=problem)
    if not is_named:
        problem = (
            f"rows 1 to {anchor.seq} are missing, and no row records their removal by retention"
        )
        return ChainVerification(head=anchor, broken_seq=anchor.seq, problem=problem)
    return ChainVerification(head=sound)


def _problem(entry: AuditEntry, before: ChainHead, kept: str | None) -> str:
    if entry.seq != before.seq + 1:
        return f"row {before.seq + 1} is missing: after row {before.seq} comes row {entry.seq}"
    if entry.unreadable:
        columns = ", ".join(entry.unreadable)
        return f"row {entry.seq} was changed: values have an unexpected type in columns {columns}"
    if entry.hash != _compute_hash(entry):
        return f"row {entry.seq} was changed: its content does not match its hash"
    if entry.previous_hash != before.hash:
        return f"row {entry.seq} does not follow row {before.seq}: one of them was inserted, moved or rewritten"
    if kept not in (None, entry.hash):
        return f"row {entry.seq} does not match the kept head: the log was rewritten from here or earlier"
    return ""


def _compute_hash(entry: AuditEntry) -> str | None:
    """Hash that a row should have; None if it cannot be computed.

    Such as for JSON nested too deeply.
    """
    try:
        return entry.compute_hash()
    except (TypeError, ValueError, RecursionError):
        return None
