"""Launches at engines that start another cluster for every request: tokens and history.

A token is derived from the service's secret, its launch and its generation, so that it can be sent
again without being stored. One row, changed by compare-and-swap only, decides whether it is still
admitted.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Update,
    delete,
    func,
    insert,
    select,
    update,
)

from holdfast.domain.jobs.launch_admission import Admission, EngineEvent, TokenState
from holdfast.store.database import reading, writing
from holdfast.store.tables.launches import launch_events, launches

_TOKEN: Final = re.compile(r"hfl_(?P<key>[a-z0-9-]+)_(?P<generation>\d+)_(?P<mac>[0-9a-f]{64})")


class LaunchBook:
    """The rows of these launches."""

    def __init__(self, engine: Engine, secret: bytes) -> None:
        self._engine = engine
        self._secret = secret

    def find(self, key: str) -> Admission | None:
        """The state of a launch; None if it was neither opened nor cancelled."""
        with reading(self._engine) as connection:
            row = connection.execute(select(launches).where(launches.c.key == key)).mappings()
            return _admission(row.first())

    def open(self, key: str, job_id: str, now: datetime) -> Admission:
        """Open a launch with a first token, unless it has one."""
        return self._insert(key, job_id, TokenState.ISSUED, now)

    def tombstone(self, key: str, job_id: str, now: datetime) -> Admission:
        """Cancel a launch: an unused token will never be admitted."""
        self._insert(key, job_id, TokenState.REVOKED, now)
        with writing(self._engine) as connection:
            connection.execute(_revoking(key, now))
            uncancelled = (launches.c.key == key, launches.c.cancelled_at.is_(None))
            connection.execute(update(launches).where(*uncancelled).values(cancelled_at=now))
        return self._require_job(key)

    def revoke(self, key: str, now: datetime) -> Admission:
        """Revoke the unused token of a launch that was opened and can never begin.

        The launch does not count as cancelled.
        """
        with writing(self._engine) as connection:
            connection.execute(_revoking(key, now))
        return self._require_job(key)

    def token(self, admission: Admission) -> str:
        """The token of a launch's current generation."""
        identity = f"{admission.key}_{admission.generation}"
        return f"hfl_{identity}_{self._mac(identity)}"

    def admit(self, token: str, now: datetime) -> bool:
        """Admit a token once: True for the first caller only, and only if it was not revoked before."""
        match = _TOKEN.fullmatch(token)
        if not match or not hmac.compare_digest(
            match["mac"], self._mac(f"{match['key']}_{match['generation']}")
        ):
            return False
        fresh = (
            update(launches)
            .where(
                launches.c.key == match["key"],
                launches.c.generation == int(match["generation"]),
                launches.c.state == TokenState.ISSUED.value,
            )
            .values(state=TokenState.CONSUMED.value, state_at=now)
        )
        with writing(self._engine) as connection:
            return connection.execute(fresh).rowcount == 1

    def assume_admitted(self, key: str, generation: int, now: datetime) -> bool:
        """Mark a token as admitted because its launch was observed; True if no gate had recorded it."""
        passed = {"state": TokenState.CONSUMED.value, "state_at": now}
        return self._change(key, generation, passed, launches.c.state == TokenState.ISSUED.value)

    def renew(self, key: str, generation: int, now: datetime) -> bool:
        """Issue a new token after one that was consumed in vain; False if another caller did."""
        fresh = {
            "generation": generation + 1,
            "state": TokenState.ISSUED.value,
            "state_at": now,
            "posted_at": None,
            "request_id": None,
            "engine_id": None,
            "lost": None,
        }
        mine = (launches.c.key == key, launches.c.generation == generation)
        spent = launches.c.state == TokenState.CONSUMED.value
        with writing(self._engine) as connection:
            changed = connection.execute(update(launches).where(*mine, spent).values(**fresh))
            if changed.rowcount:
                # The history of a job that never began does not belong to the next one.
                connection.execute(delete(launch_events).where(launch_events.c.key == key))
        return changed.rowcount == 1

    def mark_posting(self, admission: Admission, now: datetime) -> bool:
        """Record that a launch request is about to be sent.

        False if another caller sent or cancelled one since `admission` was read.
        """
        as_read = (
            launches.c.key == admission.key,
            launches.c.generation == admission.generation,
            launches.c.state == TokenState.ISSUED.value,
            launches.c.cancelled_at.is_(None),
            launches.c.posted_at.is_not_distinct_from(admission.posted_at),
        )
        change = {"posted_at": now, "request_id": None}
        with writing(self._engine) as connection:
            asked = connection.execute(update(launches).where(*as_read).values(**change))
        return asked.rowcount == 1

    def count_requested(self, since: datetime, *, besides: str) -> int:
        """Launches requested after `since` without a number, a cancel or a refusal, except one key."""
        query = select(func.count()).where(
            launches.c.posted_at > since,
            launches.c.engine_id.is_(None),
            launches.c.cancelled_at.is_(None),
            launches.c.state != TokenState.REVOKED.value,
            launches.c.key != besides,
        )
        with reading(self._engine) as connection:
            return connection.execute(query).scalar_one()

    def record_request_id(self, key: str, generation: int, request_id: str) -> None:
        """Record the engine's id of a launch request."""
        self._change(key, generation, {"request_id": request_id})

    def record_engine_id(self, key: str, generation: int, engine_id: int) -> None:
        """Record the engine's id of the launch. The first id of a token stays."""
        unknown = launches.c.engine_id.is_(None)
        self._change(key, generation, {"engine_id": engine_id}, unknown)

    def record_missing(self, key: str, since: datetime | None) -> None:
        """Record since when the engine's listings lack a launch; None while it is listed."""
        with writing(self._engine) as connection:
            connection.execute(
                update(launches).where(launches.c.key == key).values(missing_since=since)
            )

    def record_lost(self, key: str, what: str | None) -> None:
        """Record what may still run without a record at the engine; None: nothing."""
        changed = launches.c.lost.is_distinct_from(what)
        with writing(self._engine) as connection:
            connection.execute(
                update(launches).where(launches.c.key == key, changed).values(lost=what)
            )

    def undecided(self) -> Sequence[Admission]:
        """Launches of which something may still run, not cancelled since; oldest first."""
        mine = launches.c.lost.is_not(None), launches.c.cancelled_at.is_(None)
        query = select(launches).where(*mine).order_by(launches.c.missing_since, launches.c.key)
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
        return [launch for row in rows if (launch := _admission(row))]

    def events(self, key: str) -> tuple[EngineEvent, ...]:
        """The recorded history of a launch, oldest first."""
        with reading(self._engine) as connection:
            return _read_history(connection, key)

    def append_events(self, key: str, events: Sequence[EngineEvent]) -> tuple[EngineEvent, ...]:
        """Append what is new in `events`, the newest of a launch, and return its whole history."""
        with writing(self._engine) as connection:
            known = _read_history(connection, key)
            seen = set(known)
            fresh = [event for event in events if event not in seen]
            if fresh:
                rows = [
                    {
                        "key": key,
                        "n": n,
                        "at": event.at,
                        "status": event.status,
                        "code": event.code,
                        "reason": event.reason,
                    }
                    for n, event in enumerate(fresh, start=len(known) + 1)
                ]
                connection.execute(insert(launch_events), rows)
        return (*known, *fresh)

    def _insert(self, key: str, job_id: str, state: TokenState, now: datetime) -> Admission:
        with writing(self._engine) as connection:
            known = connection.execute(select(launches.c.key).where(launches.c.key == key)).first()
            if known is None:
                row = {"key": key, "job_id": job_id, "state": state.value, "state_at": now}
                connection.execute(insert(launches).values(**row, generation=1))
        return self._require_job(key)

    def _require_job(self, key: str) -> Admission:
        known = self.find(key)
        assert known, "rows of launches are never deleted"
        return known

    def _change(
        self, key: str, generation: int, values: dict[str, Any], *only: ColumnElement[bool]
    ) -> bool:
        mine = (launches.c.key == key, launches.c.generation == generation)
        with writing(self._engine) as connection:
            changed = connection.execute(update(launches).where(*mine, *only).values(**values))
        return changed.rowcount == 1

    def _mac(self, identity: str) -> str:
        return hmac.new(self._secret, f"launch/{identity}".encode(), hashlib.sha256).hexdigest()


def _revoking(key: str, now: datetime) -> Update:
    unused = (launches.c.key == key, launches.c.state == TokenState.ISSUED.value)
    return update(launches).where(*unused).values(state=TokenState.REVOKED.value, state_at=now)


def _admission(row: Any) -> Admission | None:
    if row is None:
        return None
    return Admission(**{**row, "state": TokenState(row["state"])})


def _read_history(connection: Connection, key: str) -> tuple[EngineEvent, ...]:
    query = select(launch_events).where(launch_events.c.key == key).order_by(launch_events.c.n)
    return tuple(
        EngineEvent(at=row["at"], status=row["status"], code=row["code"], reason=row["reason"])
        for row in connection.execute(query).mappings()
    )
