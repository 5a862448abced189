"""The audit log, for admins of the service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query

from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.identity import AuditEntryOut, AuditPage, AuditVerificationOut
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.domain.access.audit import AuditEntry, ChainHead
from holdfast.store.audit_log import UNREADABLE

router = Router(prefix="/v1/audit", tags=["people"])


@router.get("", response_model=AuditPage)
def list_deeds(
    services: TheServices,
    *,
    actor: Annotated[str | None, Query(description="Only this actor.")] = None,
    target: Annotated[str | None, Query(description="Only this target.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[
        int | None, Query(ge=1, le=MAX_COUNT, description="`next` of the previous page.")
    ] = None,
) -> AuditPage:
    """List audit entries, newest first."""
    rows = services.audit.page(limit=limit + 1, before=cursor, actor=actor, target=target)
    more = len(rows) > limit
    page = rows[:limit]
    return AuditPage(
        rows=[_view(entry) for entry in page], next=str(page[-1].seq) if more else None
    )


@router.get("/verdict", response_model=AuditVerificationOut)
def verify(
    services: TheServices,
    head: Annotated[
        str | None,
        Query(
            pattern=r"^\d{1,18}:[0-9a-f]{64}$",
            description="A chain head saved earlier, as `seq:hash`.",
        ),
    ] = None,
) -> AuditVerificationOut:
    """Verify that every row is unchanged, by its hash chain and by heads stored elsewhere."""
    kept = [services.anchored_head()]
    if head is not None:
        seq, _, digest = head.partition(":")
        kept.append(ChainHead(seq=int(seq), hash=digest))
    verification = services.audit.verify(kept)
    return AuditVerificationOut(
        sound=verification.broken_seq is None,
        rows=verification.head.seq - verification.anchor.seq,
        removed=verification.anchor.seq,
        head=str(verification.head),
        broken_seq=verification.broken_seq,
        problem=verification.problem or None,
    )


def _view(entry: AuditEntry) -> AuditEntryOut:
    recorded_actor = entry.audit_action.actor
    return AuditEntryOut(
        seq=entry.seq,
        at=entry.at,
        actor=recorded_actor.name,
        token_id=recorded_actor.token_id,
        address=recorded_actor.address,
        request_id=recorded_actor.request_id,
        action=entry.audit_action.action,
        target=entry.audit_action.target,
        before=_shown(entry.audit_action.before),
        after=_shown(entry.audit_action.after),
        previous_hash=entry.previous_hash,
        hash=entry.hash,
    )


def _shown(words: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the values, or a placeholder if they contain lone surrogates.

    No response can contain these.
    """
    try:
        json.dumps(words, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return {UNREADABLE: True}
    return dict(words) if words is not None else None
