"""What somebody asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from holdfast.domain.carried import Checkout
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
    checkout: Checkout | None = None
    """Where its folder stood in its repository; None where nobody said, or there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested(Fact):
    """Somebody asked for an end. The job is stopping until its nodes are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "cancelled on request"
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PauseRequested(Fact):
    """Somebody asked that the job give its nodes back and wait. It is pausing until they are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "paused on request"
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeRequested(Fact):
    """Somebody asked that a paused job go on. It is launched anew, under the next key."""

    source: ClassVar[Source] = Source.USER
    reason: str = "resumed on request"
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsChanged(Fact):
    """Somebody gave the job other limits than it had. Changes no state; guards count by them from now on."""

    source: ClassVar[Source] = Source.USER
    limits: dict[str, Any]
    """All limits from now on, ready to be read back as `Limits`: those that were not named, too."""
    changed: tuple[str, ...] = ()
    """Names of those that are other than before."""
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""
