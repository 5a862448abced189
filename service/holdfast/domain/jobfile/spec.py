"""The validated job specification: a SkyPilot task and the `holdfast:` block."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from holdfast_worker.protocol.object_stores import GOOGLE, PREFIXES
from holdfast_worker.protocol.output_files import MAX_PATTERNS, check_output_pattern
from holdfast_worker.protocol.policies import (
    RecoveryMode,
    RetentionOwner,
)
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
)

from holdfast.domain.access.permissions import PROJECT_NAME
from holdfast.domain.events.planning import LaunchPlacement
from holdfast.domain.events.values import MAX_PRIORITY
from holdfast.domain.jobfile.checkpoint_spec import Checkpoint
from holdfast.domain.jobfile.limits import Limits, Span
from holdfast.domain.jobfile.places import (
    PlaceOption,
    job_places,
    placed_resources,
    zone_resources,
)
from holdfast.domain.jobfile.plan import PlanSpec
from holdfast.domain.jobfile.resource_options import (
    LISTS,
    ResourceOption,
    merge_group,
    resource_options,
)
from holdfast.domain.jobfile.resources import (
    Resources,
    SpecModel,
    Text,
    deliverable,
    if_given,
    is_text,
    listed,
)

MODES: Final = ("MOUNT", "COPY", "MOUNT_CACHED")
"""Ways to attach a bucket to a node's file system."""
MOUNT_KEYS: Final = frozenset({"name", "source", "store", "persistent", "mode", "type", "config"})

MAX_JOB_CHANNELS: Final = 10
"""Notification channels of one job. A lower value forces shared lists; a higher value sends each event more often."""

MAX_VARIABLES: Final = 1000
"""Maximum variables of each kind in one job.

A lower value refuses environments that are copied as a whole. A higher value costs time at each rendering, and operating
systems limit the environment of a program.
"""

MAX_NODES: Final = 1000
"""Maximum nodes of one job. A lower value refuses large runs; a higher value lets a typing error rent as many."""


class Engine(StrEnum):
    """Launcher type that a job needs, from `resources.infra`."""

    LOCAL = "local"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


def launcher_name(engine: str) -> str:
    """The name of a launcher in messages; a client may not know the engine."""
    return {"skypilot": "SkyPilot", "slurm": "Slurm"}.get(engine, engine)


CONNECTED_BY: Final[Mapping[Engine, str]] = {
    Engine.LOCAL: "HOLDFAST_SHARES_HOME=true brings it, for services that share a home directory",
    Engine.SKYPILOT: "holdfast up connects one",
    Engine.SLURM: "HOLDFAST_SLURM_FOLDER connects one",
}
"""How a service gets a launcher that it does not have."""


def engine_of(resources: Mapping[str, Any]) -> Engine:
    """The launcher type of a job: `local`, `slurm[/...]`, or SkyPilot for anything else."""
    head = str(resources.get("infra") or "").split("/")[0].lower()
    return Engine(head) if head in tuple(Engine) else Engine.SKYPILOT


def _workdir(value: Any) -> Any:
    if isinstance(value, str):
        return deliverable(value)
    if not isinstance(value, Mapping) or not {"url"} <= value.keys() <= {"url", "ref"}:
        raise ValueError(
            f"{value!r} is not a folder; write one, or url and ref of a git repository"
        )
    if not all(map(is_text, value.values())):
        raise ValueError("url and ref of a git repository are texts; put them in quotes")
    return value


def _mount(value: Any) -> Any:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mount; write a path, or a bucket such as s3://b")  # noqa: TRY004
    if odd := sorted(map(str, value.keys() - MOUNT_KEYS)):
        raise ValueError(f"unknown key {odd[0]!r}; known keys are {', '.join(sorted(MOUNT_KEYS))}")
    mode = value.get("mode")
    if mode is not None and str(mode).upper() not in MODES:
        raise ValueError(
            f"mode {mode!r} is not known; write {', '.join(MODES[:-1])} or {MODES[-1]}"
        )
    if not value.get("source") and not value.get("name"):
        raise ValueError("has neither source nor name; write source: s3://bucket/prefix")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(deliverable)]
Script = Annotated[str, Field(min_length=1), AfterValidator(deliverable)]


class NodeRange(SpecModel):
    """Numbers of nodes of an elastic job."""

    min: int
    """Nodes with which training continues after a loss."""
    max: int
    """Nodes that the launcher provides."""


def _node_range(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    way_out = "write a mapping such as {min: 2, max: 8}"
    if odd := sorted(map(str, value.keys() - NodeRange.model_fields.keys())):
        raise ValueError(f"has the unknown key {odd[0]!r}; {way_out}")
    for word in NodeRange.model_fields:
        number = value.get(word)
        if number is None:
            raise ValueError(f"has no {word}; {way_out}")
        if type(number) is not int or not 1 <= number <= MAX_NODES:
            raise ValueError(
                f"has {number!r} as {word}; write a whole number from 1 to {MAX_NODES}"
            )
    low, high = value["min"], value["max"]
    if low > high:
        raise ValueError(f"has a min of {low}, which is above its max of {high}; write a lower min")
    return NodeRange(min=low, max=high)


NodeCount = Annotated[int, Field(ge=1, le=MAX_NODES)]


MIN_GROUPS: Final = 2
MAX_GROUPS: Final = 26
"""Maximum node groups of a job: a letter identifies each. A higher value needs longer names than SkyPilot accepts."""
GROUP_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,19}")


def _group_name(name: str) -> str:
    if not GROUP_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name of a group; write at most 20 lower-case letters, digits and -, the first a letter"
        )
    return name


def _priority(value: Any) -> Any:
    if type(value) is not int or abs(value) > MAX_PRIORITY:
        raise ValueError(
            f"{value!r} is not a priority; write a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    return value


def _group_nodes(value: Any) -> Any:
    if type(value) is not int or not 1 <= value <= MAX_NODES:
        raise ValueError(
            f"{value!r} is not a number of nodes; write a whole number from 1 to {MAX_NODES}"
        )
    return value


class GroupSpec(SpecModel):
    """Nodes of a job with resources of their own, which SkyPilot runs as a managed job."""

    name: Annotated[str, AfterValidator(_group_name)]
    num_nodes: Annotated[int, BeforeValidator(_group_nodes)]
    resources: Resources = Resources()
    """Options that are merged over those of the job."""

    @property
    def own_options(self) -> dict[str, Any]:
        """The options as written, without nulls."""
        options = _without_nulls(self.resources.model_dump(mode="json"))
        return {
            word: [_without_nulls(entry) for entry in value] if word in LISTS else value
            for word, value in options.items()
        }


def _without_nulls(options: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in options.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPart:
    """Nodes of a job with the same resources: a node group, or all nodes without groups."""

    name: str
    """Name of the group; empty without groups."""
    pointer: str
    """JSON pointer of its own resources in the job file."""
    first_node: int
    """Number of its first node in the job, from 0."""
    num_nodes: int
    resources: Mapping[str, Any]
    """All options that apply: those of the group merged over those of the job."""

    @property
    def options(self) -> tuple[ResourceOption, ...]:
        """The alternative node types, in the order of the file."""
        return resource_options(self.resources, self.pointer)


def _output_pattern(pattern: str) -> str:
    check_output_pattern(pattern)
    return pattern


class HoldfastBlock(SpecModel):
    """The `holdfast:` block of a job file."""

    checkpoint: Checkpoint | None = None
    """Checkpoint settings; None disables checkpoints, so every preemption restarts at step 0."""
    limits: Limits = Limits()
    plan: PlanSpec | None = None
    """How nodes are chosen while the job runs; None: as the launcher does."""
    groups: list[GroupSpec] = Field(default_factory=list)
    """Groups of nodes with different resources; empty if all nodes have the same."""
    recovery: RecoveryMode = RecoveryMode.IN_PROCESS
    """What the ranks of other nodes do if ranks are lost."""
    project: Annotated[str, Field(pattern=PROJECT_NAME)] | None = None
    """Project of the job; None if the submission or the service sets it."""
    priority: Annotated[int, BeforeValidator(_priority)] = 0
    """Priority in the queue of jobs that wait for room in quotas; higher ones come first."""
    outputs: Annotated[
        list[Annotated[Text, AfterValidator(_output_pattern)]],
        BeforeValidator(listed),
        Field(max_length=MAX_PATTERNS),
    ] = Field(default_factory=list)
    """Patterns of files that are kept in the checkpoint store at the end of an attempt."""
    keep_failed: Span | None = None
    """How long nodes are kept after a failure of the program; None: not at all."""
    tags: dict[str, Text] = Field(default_factory=dict)
    notify: Annotated[list[Text], BeforeValidator(listed), Field(max_length=MAX_JOB_CHANNELS)] = (
        Field(default_factory=list, repr=False, exclude=True)
    )
    """Notification URLs of the job. They are secrets and are excluded from stored and displayed specs."""


class JobSpec(SpecModel):
    """One job, ready to be rendered."""

    name: Name
    num_nodes: NodeCount = 1
    """Nodes that the launcher provides; the maximum of an elastic job."""
    min_nodes: NodeCount | None = None
    """Nodes with which training continues after a loss, below `num_nodes`; None: all are needed."""
    workdir: Text | None = None
    """Absolute folder that is copied to every node, or uploaded code (`holdfast.code_upload.upload_store`); None for an empty one."""
    setup: Text | None = None
    """Shell commands that run on every node before `run`; None for none."""
    run: Script
    envs: dict[str, Text] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    """SkyPilot's resource options, deprecated ones migrated."""
    secrets: tuple[str, ...] = ()
    """Names of secret variables; their values are encrypted and stored elsewhere."""
    more: dict[str, Any] = Field(default_factory=dict)
    """Other keys of a SkyPilot task, passed through unchanged."""
    holdfast: HoldfastBlock = HoldfastBlock()

    @classmethod
    def from_stored(cls, spec: Mapping[str, Any]) -> JobSpec:
        """The specification in a stored event; keys of newer versions are ignored."""
        return cls.model_validate(spec, extra="ignore")

    @property
    def nodes_as_written(self) -> int | dict[str, int]:
        """`num_nodes` as in a job file: a number, or the mapping of an elastic job."""
        if self.min_nodes is None:
            return self.num_nodes
        return {"min": self.min_nodes, "max": self.num_nodes}

    @property
    def parts(self) -> tuple[JobPart, ...]:
        """The node groups, or all nodes as one part without groups."""
        if not self.holdfast.groups:
            return (
                JobPart(
                    name="",
                    pointer="#/resources",
                    first_node=0,
                    num_nodes=self.num_nodes,
                    resources=self.resources,
                ),
            )
        found, first = list[JobPart](), 0
        for number, group in enumerate(self.holdfast.groups):
            found.append(
                JobPart(
                    name=group.name,
                    pointer=f"#/holdfast/groups/{number}/resources",
                    first_node=first,
                    num_nodes=group.num_nodes,
                    resources=merge_group(self.resources, group.own_options),
                )
            )
            first += group.num_nodes
        return tuple(found)

    @property
    def options(self) -> tuple[ResourceOption, ...]:
        """The alternative node types of all parts."""
        return tuple(option for part in self.parts for option in part.options)

    @property
    def places(self) -> tuple[PlaceOption, ...]:
        """The places that the file names, in its order.

        Node groups have places of their own, and those of local jobs are known to their launcher.
        """
        return job_places(self.resources, is_slurm=self.engine is Engine.SLURM)

    def with_placement(self, placement: LaunchPlacement | None) -> JobSpec:
        """This job as one launch asks for it; unchanged if None.

        Raises:
            BadJobFile: a place is not one of the job's, or has no nodes of this type.
        """
        if placement is None:
            return self
        assert not self.holdfast.groups, "jobs with node groups have no plan"
        match self.engine:
            case Engine.LOCAL:
                resources = zone_resources(self.resources, placement)
            case engine:
                is_slurm = engine is Engine.SLURM
                resources = placed_resources(self.resources, placement, is_slurm=is_slurm)
        return self.model_copy(update={"resources": resources})

    def of_part(self, part: JobPart) -> JobSpec:
        """This job as if it had only the nodes of one part."""
        block = self.holdfast.model_copy(update={"groups": []})
        changes = {"num_nodes": part.num_nodes, "resources": dict(part.resources)}
        return self.model_copy(update={**changes, "min_nodes": None, "holdfast": block})

    @property
    def engine(self) -> Engine:
        """Launcher type of this job."""
        return engine_of(self.resources)

    def with_limits(self, limits: Limits | None) -> JobSpec:
        """This job with other limits; unchanged if None."""
        if limits is None:
            return self
        block = self.holdfast.model_copy(update={"limits": limits})
        return self.model_copy(update={"holdfast": block})

    def with_work(self, work_s: float) -> JobSpec:
        """This job with another amount of work in its plan, rounded up to a second."""
        assert self.holdfast.plan, "only a plan says how much work there is"
        plan = self.holdfast.plan.model_copy(update={"work": f"{math.ceil(work_s)}s"})
        block = self.holdfast.model_copy(update={"plan": plan})
        return self.model_copy(update={"holdfast": block})

    def with_parent(self, job_id: str) -> JobSpec:
        """This job, continuing from the checkpoints of another job in its store."""
        assert self.holdfast.checkpoint, "continuing from a job requires a checkpoint store"
        checkpoint = self.holdfast.checkpoint.model_copy(update={"from_job": job_id})
        block = self.holdfast.model_copy(update={"checkpoint": checkpoint})
        return self.model_copy(update={"holdfast": block})

    @property
    def retention_owner(self) -> RetentionOwner | None:
        """Who deletes expired checkpoints; None without checkpoints.

        The service, unless the file names the worker or the service cannot access the store.
        """
        checkpoint = self.holdfast.checkpoint
        if checkpoint is None:
            return None
        return checkpoint.tidy or (
            RetentionOwner.WORKER if self.store_refusal else RetentionOwner.SERVICE
        )

    @property
    def store_refusal(self) -> str:
        """Why the service cannot access the checkpoint store; empty if it can."""
        checkpoint = self.holdfast.checkpoint
        if checkpoint is None:
            return ""
        if checkpoint.store.startswith("file://") and self.engine is Engine.SKYPILOT:
            return "the service cannot access a folder on cloud nodes"
        scheme = checkpoint.store.partition("://")[0]
        if any(name.startswith(PREFIXES.get(scheme, "AWS_")) for name in self.secrets):
            return "the keys of the store are secrets of the job, which the service does not use"
        key_file = scheme == GOOGLE and "GOOGLE_APPLICATION_CREDENTIALS" in self.envs
        if key_file and self.engine is Engine.SKYPILOT:
            return "the service cannot read a key file on cloud nodes"
        return ""


class JobFile(SpecModel):
    """Keys of a job file: those of a SkyPilot task, and `holdfast`."""

    name: Name | None = None
    num_nodes: Annotated[
        Annotated[NodeCount, Tag("int")]
        | Annotated[NodeRange, BeforeValidator(_node_range), Tag("dict")],
        Discriminator(lambda value: "dict" if isinstance(value, Mapping) else "int"),
    ] = 1
    """Number of nodes, or the range of an elastic job."""
    workdir: Annotated[Any, if_given(_workdir)] = None
    setup: Text | None = None
    run: Script | Annotated[list[Text], Field(min_length=1)]
    """Shell text, or a list of arguments that are passed to the program unchanged."""
    envs: dict[str, Text] = Field(default_factory=dict, max_length=MAX_VARIABLES)
    secrets: dict[str, Text] = Field(default_factory=dict, max_length=MAX_VARIABLES, repr=False)
    resources: Resources = Resources()
    file_mounts: dict[str, Annotated[Any, AfterValidator(_mount)]] | None = None
    volumes: dict[str, Any] | None = None
    event_callback: str | None = None
    service: Any = None
    pool: Any = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    experimental: Any = None
    execution: Any = None
    api_server_access: bool | None = None
    holdfast: HoldfastBlock = HoldfastBlock()
