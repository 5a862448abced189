"""Summary of a commit: size, metrics, format.

Standard library only, as the service also reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast_worker.protocol.reports import Json

FORMAT: Final = 2
"""Version of the layout and of the metadata.
Every version has its commits under `commits/` as JSON objects with the version in `format`, so that each reader recognizes commits
that it cannot read."""

OLDEST_FORMAT: Final = 2
"""The oldest format that this version reads."""


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The last value of a metric up to a checkpoint."""

    value: float | None
    """None if it was not finite."""
    step: int
    """The step at which it was logged.
    It may be before the checkpoint, as for an occasional validation."""

    def dump(self) -> Json:
        """Serialize it for a commit and a report."""
        return {"value": self.value, "step": self.step}

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Parse the output of `dump`."""
        value = raw["value"]
        return cls(None if value is None else float(value), int(raw["step"]))


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """Size and metrics of a checkpoint."""

    size_bytes: int
    """Size of all objects except the commit itself."""
    metrics: Mapping[str, MetricValue]
    """Last values of the metrics that the script had logged."""

    @classmethod
    def of_commit(cls, data: bytes) -> Self:
        """Parse the summary from a stored commit.

        Raises:
            ValueError: the commit is damaged or has no summary.
        """
        try:
            body = json.loads(data)
            if body.pop("sha256") != commit_digest(body):
                raise ValueError("the commit does not match its digest")
            metrics = {name: MetricValue.parse(raw) for name, raw in body["metrics"].items()}
            return cls(int(body["size_bytes"]), metrics)
        except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError("the commit cannot be parsed") from error


def unsupported_format(body: Any) -> str:
    """Why this version cannot read a commit's format, and what to do.

    Empty for supported formats.

    Also empty for a commit of a supported format in which only the format is damaged, as its digest shows.
    """
    found = body.get("format") if isinstance(body, dict) else None
    if not isinstance(found, int) or OLDEST_FORMAT <= found <= FORMAT or _has_valid_digest(body):
        return ""
    if found > FORMAT:
        remedy = "install the Holdfast version that wrote it, or a newer one, for the service and its nodes"
        return f"it has checkpoint format {found}, and this version reads up to {FORMAT}: {remedy}"
    remedy = "continue the job with the Holdfast version that wrote it"
    return f"it has checkpoint format {found}, and this version reads {OLDEST_FORMAT} and newer: {remedy}"


def unsupported_format_of(data: bytes) -> str:
    """`unsupported_format` of a stored commit; empty for a damaged commit that cannot be parsed."""
    try:
        return unsupported_format(json.loads(data))
    except (ValueError, RecursionError):
        return ""


def _has_valid_digest(body: Mapping[str, Any]) -> bool:
    """Whether the digest matches the commit with a supported format."""
    rest = {key: value for key, value in body.items() if key != "sha256"}
    known = range(OLDEST_FORMAT, FORMAT + 1)
    return body.get("sha256") in [commit_digest({**rest, "format": number}) for number in known]


def commit_digest(body: object) -> str:
    """The digest of a commit's other fields, which the commit stores."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
