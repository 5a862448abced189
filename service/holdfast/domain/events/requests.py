"""What somebody asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import Checkout, Count, Values, Versions

DEFAULT_PROJECT: Final = "default"
"""Of jobs whose submission names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted(EventBase):
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
    confined: bool = False
    """True: a user without rights to the service's machine submitted it, so that its launches get none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested(EventBase):
    """Somebody asked for an end. The job is stopping until its nodes are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "cancelled on request"
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PauseRequested(EventBase):
    """Somebody asked that the job give its nodes back and wait. It is pausing until they are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "paused on request"
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeRequested(EventBase):
    """Somebody asked that a paused job go on. It is launched anew, under the next key."""

    source: ClassVar[Source] = Source.USER
    reason: str = "resumed on request"
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsChanged(EventBase):
    """Somebody gave the job other limits than it had. Changes no state; guards count by them from now on."""

    source: ClassVar[Source] = Source.USER
    limits: dict[str, Any]
    """All limits from now on, ready to be read back as `Limits`: those that were not named, too."""
    changed: tuple[str, ...] = ()
    """Names of those that are other than before."""
    by: str = ""
    """Name of who asked; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsCompared(EventBase):
    """Somebody put this job, which had been interrupted, beside the same job that was left alone. Changes no state."""

    source: ClassVar[Source] = Source.USER
    against: str
    """Id of the job that was left alone."""
    steps: Count
    preemptions: Count
    weights_sha256: str
    """Of its last step; empty where none was saved. So for the other."""
    other_weights_sha256: str
    numbers: Values = field(default_factory=dict)
    """What it had logged at its last step. So for the other."""
    other_numbers: Values = field(default_factory=dict)
    batches: Count = 0
    """Steps of ranks whose batches were compared; 0: nobody had written them down."""
    other_batches: Count = 0
    """Those of them that were given another batch."""
    values: Count = 0
    """Numbers that both had logged at the same step."""
    other_values: Count = 0
    """Those of them that were others."""
    versions: Versions = field(default_factory=dict)
    by: str = ""
    """Name of who compared them; empty as in `Submitted`."""

    @property
    def holds(self) -> bool:
        """Whether both came to the same, as far as it was compared."""
        same_weights = (
            bool(self.weights_sha256) and self.weights_sha256 == self.other_weights_sha256
        )
        same_numbers = self.numbers == self.other_numbers and not self.other_values
        return same_weights and same_numbers and not self.other_batches and self.preemptions > 0

    @property
    def why(self) -> str:
        """The same as a sentence, without its stop."""
        times = "once" if self.preemptions == 1 else f"{self.preemptions} times"
        if self.holds:
            data = (
                f"; all {self.batches:,} batches were the same"
                if self.batches
                else "; which data each step was given was not written down"
            )
            return (
                f"interrupted {times}, it came after {self.steps:,} steps to the weights of job {self.against}, bit for bit"
                + data
            )
        flaws = [
            "it was not interrupted" * (not self.preemptions),
            "the weights are others" * (self.weights_sha256 != self.other_weights_sha256),
            "no weights were saved" * (not self.weights_sha256),
            f"{self.other_batches:,} of {self.batches:,} batches were others"
            * bool(self.other_batches),
            f"{self.other_values:,} of {self.values:,} logged numbers were others"
            * bool(self.other_values),
            "the numbers that were logged last are others" * (self.numbers != self.other_numbers),
        ]
        return "; ".join(filter(None, flaws))
