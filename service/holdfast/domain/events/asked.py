"""What somebody asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from holdfast.domain.events.fact import Fact, Source

DEFAULT_PROJECT: Final = "default"
"""Of jobs whose submission names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted(Fact):
    """Somebody asked for this job; the first event of every job."""

    source: ClassVar[Source] = Source.USER
    name: str
    spec: dict[str, Any]
    """The job file as understood, ready to be read back as a `JobSpec`."""
    task: str
    """The rendered task as YAML: what launchers are given."""
    notes: tuple[str, ...] = ()
    """What was put right in the job file, as sentences."""
    by: str = ""
    """Name of who asked; empty in events of before, and where nobody has to say who they are."""
    project: str = DEFAULT_PROJECT
    """What it belongs to, for budgets and rights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested(Fact):
    """Somebody asked for an end. The job is stopping until its nodes are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "cancelled on request"
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""
