"""What a commit says in short, for whoever does not read all of it. Standard library only, as the service reads it, too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast_worker.protocol.reports import Json

FORMAT: Final = 2
"""Version of the layout and of the records. Every version, older and newer, has its commits under `commits/` as JSON objects
that state it as `format`, so that each reader finds out which of them it cannot read."""

OLDEST_FORMAT: Final = 2
"""The lowest version that is still read."""


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The last value of a metric up to a checkpoint."""

    value: float | None
    """None where it was not finite."""
    step: int
    """After how many steps it was logged; it may be older than the checkpoint, as that of a validation now and then."""

    def dump(self) -> Json:
        """As it stands in a commit and in a report."""
        return {"value": self.value, "step": self.step}

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """What was dumped."""
        value = raw["value"]
        return cls(None if value is None else float(value), int(raw["step"]))


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """How large a checkpoint is, and how good."""

    size_bytes: int
    """Of all objects but the commit itself."""
    metrics: Mapping[str, MetricValue]
    """What the script had logged."""

    @classmethod
    def of_commit(cls, data: bytes) -> Self:
        """That of a commit as it is stored.

        Raises:
            ValueError: not a whole commit, or none that says it.
        """
        try:
            body = json.loads(data)
            if body.pop("sha256") != seal(body):
                raise ValueError("the commit does not have the digest that it says")
            metrics = {name: MetricValue.parse(raw) for name, raw in body["metrics"].items()}
            return cls(int(body["size_bytes"]), metrics)
        except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError("the commit cannot be parsed") from error


def unread_format(body: Any) -> str:
    """Why this version cannot read a commit of another format, and what to do; empty for a format that it reads.

    So it is for a commit of such a format in which nothing but the format is damaged. Its digest shows that.
    """
    found = body.get("format") if isinstance(body, dict) else None
    if not isinstance(found, int) or OLDEST_FORMAT <= found <= FORMAT or _is_another(body):
        return ""
    if found > FORMAT:
        todo = "install the Holdfast version that wrote it, or a newer one, for the service and its nodes"
        return f"it has checkpoint format {found}, and this version reads up to {FORMAT}: {todo}"
    todo = "continue the job with the Holdfast version that wrote it"
    return f"it has checkpoint format {found}, and this version reads {OLDEST_FORMAT} and newer: {todo}"


def unread_format_of(data: bytes) -> str:
    """The same for a commit as it is stored; empty for one that cannot be parsed, which is damaged."""
    try:
        return unread_format(json.loads(data))
    except (ValueError, RecursionError):
        return ""


def _is_another(body: Mapping[str, Any]) -> bool:
    """Whether a commit has the digest of one of a format that this version reads."""
    rest = {key: value for key, value in body.items() if key != "sha256"}
    known = range(OLDEST_FORMAT, FORMAT + 1)
    return body.get("sha256") in [seal({**rest, "format": number}) for number in known]


def seal(body: object) -> str:
    """The digest of a commit's other words, which the commit says of itself."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
