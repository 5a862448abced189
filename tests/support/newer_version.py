"""Behavior of a newer service version: unknown events in the database, extended responses."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final

from holdfast.api.app import describe
from holdfast.domain.jobs.lifecycle import FOLD
from holdfast.store.tables.jobs import job_events, jobs
from sqlalchemy import Engine, func, insert, select, update
from starlette.datastructures import MutableHeaders


def write_event(
    engine: Engine, job_id: str, at: datetime, kind: str, source: str = "reconciler", **body: Any
) -> None:
    """Append an event, and update the cached job row as the newer version does."""
    with engine.begin() as connection:
        place = select(func.max(job_events.c.seq), func.max(job_events.c.cursor))
        seq = connection.execute(place.where(job_events.c.job_id == job_id)).one()[0] + 1
        cursor = connection.execute(select(func.max(job_events.c.cursor))).scalar_one() + 1
        found = {"kind": kind, "source": source, "at": at, "recorded_at": at, "body": body}
        connection.execute(
            insert(job_events).values(job_id=job_id, seq=seq, cursor=cursor, **found)
        )
        row = connection.execute(select(jobs.c.fold).where(jobs.c.id == job_id)).scalar_one()
        cached = {**row, "fold": FOLD + 1, "seq": seq, "moved": True}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(seq=seq, fold=cached))


UNHEARD: Final = "unheard-of"
"""An enum value that only a newer service knows."""
_WORDS: Final = frozenset(
    {"state", "kind", "role", "engine", "guard", "cause", "phase", "ended_by"}
)


class NewerService:
    """The service, answering as a newer version may: extra fields and unknown enum values."""

    version = "0.2.0"

    def __init__(self, app: Any) -> None:
        self._app = app
        description = describe()
        self._schemas: dict[str, Any] = description["components"]["schemas"]
        self._routes = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), method.upper(), operation["responses"])
            for path, methods in description["paths"].items()
            for method, operation in methods.items()
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        schema = self._schema(scope) if scope["type"] == "http" else None
        begun: dict[str, Any] = {}
        content = b""

        async def send_newer(message: dict[str, Any]) -> None:
            nonlocal content, begun
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Holdfast-Version"] = self.version
                begun = message
            is_json = b"application/json" in dict(begun["headers"]).get(b"content-type", b"")
            if schema is None or not is_json:
                await send(message)
            elif message["type"] == "http.response.body":
                content += message.get("body", b"")
                if not message.get("more_body"):
                    body = json.dumps(self.extended(schema, json.loads(content))).encode()
                    MutableHeaders(scope=begun)["Content-Length"] = str(len(body))
                    await send(begun)
                    await send({"type": "http.response.body", "body": body})

        await self._app(scope, receive, send_newer)

    def extended(self, schema: dict[str, Any], value: Any) -> Any:
        """Return a response value with the additions of a newer version."""
        schema = self._resolved(schema, value)
        if isinstance(value, list):
            return [self.extended(schema.get("items", {}), item) for item in value]
        if not isinstance(value, dict):
            return value
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        rest = rest if isinstance(rest, dict) else {}
        response = {
            name: self.extended(known.get(name, rest), each) for name, each in value.items()
        }
        words = {
            name: UNHEARD for name in _WORDS & set(known) if isinstance(response.get(name), str)
        }
        return {**response, **words, "a_later_field": {"nested": [1, None]}} if known else response

    def _resolved(self, schema: dict[str, Any], value: Any) -> dict[str, Any]:
        for choice in schema.get("anyOf", ()):
            if value is not None and choice.get("type") != "null":
                return self._resolved(choice, value)
        if "$ref" in schema:
            return self._resolved(self._schemas[schema["$ref"].rpartition("/")[2]], value)
        return schema

    def _schema(self, scope: Any) -> dict[str, Any] | None:
        for pattern, method, responses in self._routes:
            if method == scope["method"] and pattern.fullmatch(scope["path"]):
                fits = next(iter(v for code, v in responses.items() if code.startswith("2")), {})
                content = fits.get("content", {}).get("application/json")
                return content["schema"] if content else None
        return None
