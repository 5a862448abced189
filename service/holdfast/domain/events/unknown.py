"""An event that a newer version recorded, as an older version keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.domain.events.fact import Fact, Source


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownEvent(Fact):
    """An event of a kind, or with an enum value, that this version does not know. It is listed as it is and changes no state."""

    source: ClassVar[Source] = Source.UNKNOWN
    kind: str
    body: dict[str, Any]
