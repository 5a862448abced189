"""Server-sent events, as the client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message of a stream."""

    id: str
    event: str
    data: Any


def messages(lines: Iterator[str]) -> Iterator[StreamMessage]:
    """Parse a `text/event-stream` as the HTML standard specifies."""
    fields: dict[str, str] = {}
    for line in lines:
        if line == "":
            if "data" in fields:
                yield StreamMessage(
                    fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"])
                )
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name:
            value = value.removeprefix(" ")
            fields[name] = (
                f"{fields[name]}\n{value}" if name == "data" and name in fields else value
            )
