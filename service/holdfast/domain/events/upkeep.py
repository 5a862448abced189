"""What the janitor of checkpoint stores did. It says nothing about nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from holdfast.domain.carried import Count
from holdfast.domain.events.fact import Fact, Source


class Removal(StrEnum):
    """Why a checkpoint was removed."""

    SUPERSEDED = "superseded"
    """The job file does not ask to keep it any more."""
    OFF_LINEAGE = "off_lineage"
    """A later placement went on from an earlier step, so that nobody would resume from it."""
    DEAD_UPLOAD = "dead_upload"
    """It was never whole, and whoever was writing it is gone."""
    FOUND_GONE = "found_gone"
    """It was whole once, and is not in the store any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointsRemoved(Fact):
    """Checkpoints, or what was left of them, are not in the store any more: nobody can resume from them."""

    source: ClassVar[Source] = Source.JANITOR
    checkpoints: tuple[str, ...]
    """Their names. Their bytes may take a moment longer to go."""
    removal: Removal
    size_bytes: Count
    """All of them together, as far as it is known."""
