"""The audit log, for admins of the service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query

from holdfast.api.dependencies import The
from holdfast.api.routing import Router
from holdfast.api.schemas.identity import AuditEntryOut, AuditPage, AuditVerificationOut
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.domain.access.audit import AuditEntry, ChainHead
from holdfast.store.audit_log import UNREADABLE

router = Router(prefix="/v1/audit", tags=["people"])


@router.get("", response_model=AuditPage)
def list_deeds(
    services: The,
    *,
    actor: Annotated[str | None, Query(description="Only what this one did.")] = None,
    target: Annotated[str | None, Query(description="Only what was done to this.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[
        int | None, Query(ge=1, le=MAX_COUNT, description="`next` of the page before.")
    ] = None,
) -> AuditPage:
    """What was done, newest first."""
    rows = services.audit.page(limit=limit + 1, before=cursor, actor=actor, target=target)
    more = len(rows) > limit
    page = rows[:limit]
    return AuditPage(
        rows=[_view(entry) for entry in page], next=str(page[-1].seq) if more else None
    )


@router.get("/verdict", response_model=AuditVerificationOut)
def verify(
    services: The,
    head: Annotated[
        str | None,
        Query(
            pattern=r"^\d{1,18}:[0-9a-f]{64}$", description="A head that was kept, as `seq:hash`."
        ),
    ] = None,
) -> AuditVerificationOut:
    """Whether every row is the one that was written, by the hashes and by heads that were kept elsewhere."""
    kept = [services.kept_head()]
    if head is not None:
        seq, _, digest = head.partition(":")
        kept.append(ChainHead(seq=int(seq), hash=digest))
    verdict = services.audit.verify(kept)
    return AuditVerificationOut(
        sound=verdict.broken_seq is None,
        rows=verdict.head.seq - verdict.anchor.seq,
        removed=verdict.anchor.seq,
        head=str(verdict.head),
        broken_seq=verdict.broken_seq,
        problem=verdict.problem or None,
    )


def _view(entry: AuditEntry) -> AuditEntryOut:
    doer = entry.deed.doer
    return AuditEntryOut(
        seq=entry.seq,
        at=entry.at,
        actor=doer.name,
        token_id=doer.token_id,
        address=doer.address,
        request_id=doer.request_id,
        action=entry.deed.action,
        target=entry.deed.target,
        before=_shown(entry.deed.before),
        after=_shown(entry.deed.after),
        previous_hash=entry.previous_hash,
        hash=entry.hash,
    )


def _shown(words: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The words, or a stand-in where they hold half of a pair of surrogates, which no response can hold."""
    try:
        json.dumps(words, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return {UNREADABLE: True}
    return dict(words) if words is not None else None
