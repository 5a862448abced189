"""What a person asked for: a SkyPilot task and the `holdfast:` block, understood and checked."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from holdfast_worker.wire import Cadence
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

STORE_PATTERN: Final = r"^(s3://[^/\s]+(/.*)?|file:///.+)$"

NOT_TEXT: Final = "holds half of a surrogate pair, which is not text; remove it"


class Engine(StrEnum):
    """Which kind of launcher a job needs, as `resources.infra` says."""

    LOCAL = "local"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


def _deliverable(text: str) -> str:
    """The text itself, if a program can receive it."""
    if "\0" in text:
        raise ValueError("holds a NUL character, which no program can receive; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(NOT_TEXT) from error
    return text


def _cadence(text: str) -> str:
    Cadence.parse(text)
    return text


Text = Annotated[str, AfterValidator(_deliverable)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_deliverable)]
Script = Annotated[str, Field(min_length=1), AfterValidator(_deliverable)]


class Model(BaseModel):
    """Frozen, and strict about names: a word that is not known is a mistake, not a wish."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Checkpoint(Model):
    """Where, how often and how many."""

    store: Annotated[Text, Field(pattern=STORE_PATTERN)]
    """`s3://bucket/prefix`, with endpoint and credentials as boto3 finds them, or `file:///path`."""
    every: Annotated[str, AfterValidator(_cadence)] = "auto"
    keep: Annotated[int, Field(ge=2, le=1000)] = 3
    """Complete checkpoints that stay; at least 2, so that a damaged one has one before it."""


class Limits(Model):
    """Where a job is given up."""

    max_failures: Annotated[int, Field(ge=1, le=100)] = 3
    """How often the program itself may fail. Preemptions do not count."""


class HoldfastBlock(Model):
    """The `holdfast:` block of a job file."""

    checkpoint: Checkpoint | None = None
    """None: nothing is saved, and every preemption starts at step 0."""
    limits: Limits = Limits()
    tags: dict[str, Text] = Field(default_factory=dict)


class JobSpec(Model):
    """One job, ready to be rendered."""

    name: Name
    num_nodes: Annotated[int, Field(ge=1, le=1000)] = 1
    workdir: Text | None = None
    """Absolute folder that is copied to every node; None means an empty one."""
    setup: Text | None = None
    """Shell text that runs on every node before `run`; None means nothing."""
    run: Script
    envs: dict[str, Text] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    """SkyPilot's words, stale ones put right."""
    more: dict[str, Any] = Field(default_factory=dict)
    """Other words of a SkyPilot task, passed on as they are."""
    holdfast: HoldfastBlock = HoldfastBlock()

    @property
    def engine(self) -> Engine:
        """The kind of launcher this job needs: `local`, `slurm[/...]`, or SkyPilot for anything else."""
        head = str(self.resources.get("infra") or "").split("/")[0].lower()
        return Engine(head) if head in (Engine.LOCAL, Engine.SLURM) else Engine.SKYPILOT


class Resources(Model):
    """Words that SkyPilot 0.14 knows under `resources:`; only `infra` and `use_spot` mean something to us."""

    infra: str | None = None
    use_spot: bool | None = None
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    accelerators: str | dict[str, Any] | list[Any] | None = None
    accelerator_args: Any = None
    cpus: Any = None
    memory: Any = None
    instance_type: str | None = None
    disk_size: Any = None
    disk_tier: Any = None
    local_disk: Any = None
    network_tier: Any = None
    ports: Any = None
    labels: Any = None
    autostop: Any = None
    image_id: Any = None
    volumes: Any = None
    priority: Any = None
    max_hourly_cost: Any = None
    job_recovery: Any = None
    any_of: list[dict[str, Any]] | None = None
    ordered: list[dict[str, Any]] | None = None


class JobFile(Model):
    """The words of a job file: those of a SkyPilot task, and `holdfast`."""

    name: Name | None = None
    num_nodes: Annotated[int, Field(ge=1, le=1000)] = 1
    workdir: Text | None = None
    setup: Text | None = None
    run: Script | Annotated[list[Text], Field(min_length=1)]
    """Shell text, or a list of words that reach the program exactly as they are."""
    envs: dict[str, Text] = Field(default_factory=dict)
    secrets: Any = None
    resources: Resources = Resources()
    file_mounts: dict[str, Any] | None = None
    volumes: Any = None
    event_callback: str | None = None
    service: Any = None
    pool: Any = None
    inputs: Any = None
    outputs: Any = None
    config: Any = None
    experimental: Any = None
    execution: Literal["serial", "parallel"] | None = None
    holdfast: HoldfastBlock = HoldfastBlock()
