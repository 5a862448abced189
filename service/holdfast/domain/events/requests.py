"""Events that users request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeAlias

from holdfast.domain.events.base import EventBase, Source
from holdfast.domain.events.values import (
    Attempt,
    Checkout,
    Count,
    Demand,
    Priority,
    Values,
    Versions,
)

DEFAULT_PROJECT: Final = "default"
"""Project of jobs whose submission names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted(EventBase):
    """A user submitted the job; the first event of every job."""

    source: ClassVar[Source] = Source.USER
    name: str
    spec: dict[str, Any]
    """The normalized job file, readable as a `JobSpec`."""
    task: str
    """The rendered task as YAML, as passed to launchers."""
    notes: tuple[str, ...] = ()
    """Corrections of the job file, as sentences."""
    by: str = ""
    """Name of the user; empty in older events and without authentication."""
    project: str = DEFAULT_PROJECT
    """Project of the job, for budgets and permissions."""
    checkout: Checkout | None = None
    """Git state of the job's folder; None if unknown or without a repository."""
    sweep: str = ""
    """Id of the sweep that the job belongs to; empty without one."""
    trial: int = 0
    """Number of its combination in the sweep, from 1; 0 without a sweep."""
    parameters: dict[str, str] = field(default_factory=dict)
    """Values of the sweep's parameters, which are also in the variables of the job."""
    confined: bool = False
    """Whether a user without rights to the service's machine submitted it; its launches then have none."""
    demand: Demand | None = None
    """What it holds at most, as quotas count it; None in older events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested(EventBase):
    """A user cancelled the job. It is stopping until its nodes are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "cancelled on request"
    by: str = ""
    """Name of the user; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PauseRequested(EventBase):
    """A user paused the job. It is pausing until its nodes are gone."""

    source: ClassVar[Source] = Source.USER
    reason: str = "paused on request"
    by: str = ""
    """Name of the user; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeRequested(EventBase):
    """A user resumed a paused job. It is launched again under the next key."""

    source: ClassVar[Source] = Source.USER
    reason: str = "resumed on request"
    by: str = ""
    """Name of the user; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resized(EventBase):
    """A user gave a paused job other resources, which its next launches ask for.

    It holds the whole job file, so that nothing has to be read from elsewhere.
    """

    source: ClassVar[Source] = Source.USER
    spec: dict[str, Any]
    """The normalized job file from now on, readable as a `JobSpec`."""
    task: str
    """The rendered task from now on, as YAML."""
    changes: tuple[str, ...] = ()
    """What differs, as phrases: `nodes 4 instead of 2`."""
    notes: tuple[str, ...] = ()
    """Notes on the new resources, as sentences."""
    confined: bool = False
    """As in `Submitted`: also set if the user who resized has no rights to the service's machine."""
    demand: Demand | None = None
    """What it holds at most from now on, as quotas count it; None without quotas."""
    micros_per_hour: Count = 0
    """Price of all nodes as far as known at the resize; 0 if unknown, or if they are not rented."""
    by: str = ""
    """Name of the user; empty as in `Submitted`."""

    def applied_to(self, submitted: Submitted) -> Submitted:
        """The submission as if the job had been submitted with these resources."""
        return replace(
            submitted,
            spec=self.spec,
            task=self.task,
            notes=self.notes,
            confined=self.confined,
            demand=self.demand,
        )


def current_submission(events: Iterable[EventBase]) -> Submitted:
    """The submission of a job with the resources of its newest resize; other events are skipped."""
    found: Submitted | None = None
    for event in events:
        match event:
            case Submitted():
                found = event
            case Resized() if found:
                found = event.applied_to(found)
    assert found, "a job begins with its submission"
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsChanged(EventBase):
    """A user changed the limits of the job.

    Changes no state; guards use the new limits from now on.
    """

    source: ClassVar[Source] = Source.USER
    limits: dict[str, Any]
    """All limits from now on, including unchanged ones, readable as `Limits`."""
    changed: tuple[str, ...] = ()
    """Names of the changed limits."""
    by: str = ""
    """Name of the user; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TagsChanged(EventBase):
    """A user changed the tags of the job, also of an ended one. Changes no state."""

    source: ClassVar[Source] = Source.USER
    tags: dict[str, str]
    """All tags from now on, including unchanged ones."""
    by: str = ""
    """Name of the user; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorityChanged(EventBase):
    """A user changed the priority of the job in the queue. Changes no state."""

    source: ClassVar[Source] = Source.USER
    priority: Priority
    by: str = ""
    """Name of the user; empty as in `Submitted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillRequested(EventBase):
    """A user requested the preemption of a node, to test how the job recovers.

    Changes no state; the loss that follows has `drill` set.
    """

    source: ClassVar[Source] = Source.USER
    attempt: Attempt
    """The attempt that was running, as far as recorded."""
    node: int | None = None
    """Index of the node in its placement, from 0; None: the launcher chose one."""
    notice_s: float | None = None
    """Notice in seconds; None: without notice."""
    by: str = ""
    """Name of the user; empty as in `Submitted`."""
    through_worker: bool = False
    """Whether the worker is asked to leave, because the launcher cannot preempt nodes."""
    group: str = ""
    """Name of the node group that leaves as a whole; empty if the job has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsCompared(EventBase):
    """A user compared this preempted job with an uninterrupted run of it. Changes no state."""

    source: ClassVar[Source] = Source.USER
    against: str
    """Id of the uninterrupted job."""
    steps: Count
    preemptions: Count
    weights_sha256: str
    """Digest of the weights at its last step; empty if none were saved."""
    other_weights_sha256: str
    numbers: Values = field(default_factory=dict)
    """Values logged at its last step."""
    other_numbers: Values = field(default_factory=dict)
    batches: Count = 0
    """Rank steps whose batches were compared; 0 if no batches were recorded."""
    other_batches: Count = 0
    """Compared rank steps with different batches."""
    values: Count = 0
    """Values that both runs logged at the same step."""
    other_values: Count = 0
    """Compared values that differ."""
    replaced_nodes: Count = 0
    """Nodes that were replaced while the others waited, each after one of the preemptions."""
    versions: Versions = field(default_factory=dict)
    by: str = ""
    """Name of the user; empty as in `Submitted`."""

    @property
    def is_equivalent(self) -> bool:
        """Whether both runs had the same result, as far as compared."""
        same_weights = (
            bool(self.weights_sha256) and self.weights_sha256 == self.other_weights_sha256
        )
        same_numbers = self.numbers == self.other_numbers and not self.other_values
        return same_weights and same_numbers and not self.other_batches and self.preemptions > 0

    @property
    def explanation(self) -> str:
        """The comparison result as a sentence without full stop."""
        times = "once" if self.preemptions == 1 else f"{self.preemptions} times"
        if self.replaced_nodes:
            nodes = "a node" if self.replaced_nodes == 1 else f"{self.replaced_nodes} nodes"
            times += f", {nodes} replaced while the others waited"
        if self.is_equivalent:
            data = (
                f"; all {self.batches:,} batches are identical"
                if self.batches
                else "; the batches of each step were not recorded"
            )
            return (
                f"preempted {times}; after {self.steps:,} steps its weights are bit-identical to those of job {self.against}"
                + data
            )
        differences = [
            "the run was not preempted" * (not self.preemptions),
            "the weights differ" * (self.weights_sha256 != self.other_weights_sha256),
            "no weights were saved" * (not self.weights_sha256),
            f"{self.other_batches:,} of {self.batches:,} batches differ" * bool(self.other_batches),
            f"{self.other_values:,} of {self.values:,} logged values differ"
            * bool(self.other_values),
            "the last logged values differ" * (self.numbers != self.other_numbers),
        ]
        return "; ".join(filter(None, differences))


RequestFact: TypeAlias = (
    Submitted
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | Resized
    | LimitsChanged
    | TagsChanged
    | PriorityChanged
    | DrillRequested
    | RunsCompared
)
