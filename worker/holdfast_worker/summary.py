"""What a commit says in short, for whoever does not read all of it. Standard library only, as the service reads it, too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast_worker.wire import Json


@dataclass(frozen=True, slots=True)
class Logged:
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
class Summary:
    """How large a checkpoint is, and how good."""

    size_bytes: int
    """Of all objects but the commit itself."""
    metrics: Mapping[str, Logged]
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
            metrics = {name: Logged.parse(raw) for name, raw in body["metrics"].items()}
            return cls(int(body["size_bytes"]), metrics)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("the commit cannot be parsed") from error


def seal(body: object) -> str:
    """The digest of a commit's other words, which the commit says of itself."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
