"""Server-sent events, as the client reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message of a stream."""

    id: str
    event: str
    data: Any


class MessageParser:
    """Parses a `text/event-stream`, line by line, as the HTML standard specifies."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> StreamMessage | None:
        """Add a line; returns the message that it completes."""
        if line == "":
            fields, self._fields = self._fields, {}
            if "data" not in fields:
                return None
            data = json.loads(fields["data"])
            return StreamMessage(fields.get("id", ""), fields.get("event", "message"), data)
        name, _, value = line.partition(":")
        if name:
            value = value.removeprefix(" ")
            is_more_data = name == "data" and name in self._fields
            self._fields[name] = f"{self._fields[name]}\n{value}" if is_more_data else value
        return None
