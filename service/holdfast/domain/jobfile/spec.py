"""What a person asked for: a SkyPilot task and the `holdfast:` block, understood and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import unquote

from holdfast_worker.protocol.policies import Cadence, OnFailure, RetentionOwner
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from holdfast.domain.access.permissions import PROJECT_NAME
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.retention_policy import RetentionPolicy

STORE_PATTERN: Final = r"^(s3://[^/\s]+(/.*)?|file:///.+)$"

MODES: Final = ("MOUNT", "COPY", "MOUNT_CACHED")
"""How a bucket can lie in the file system of a node."""
MOUNT_WORDS: Final = frozenset({"name", "source", "store", "persistent", "mode", "type", "config"})

MOST_CHANNELS: Final = 10
"""Places that one job tells. Smaller: people name a list of theirs. Bigger: each fact of it is told so many times."""

MOST_VARIABLES: Final = 1000
"""Variables of one job, of either kind. A lower value refuses environments that are copied in whole; a higher value costs time
at each rendering, and systems bound what a program may be started with."""

NOT_TEXT: Final = "holds half of a surrogate pair, which is not text; remove it"


class Engine(StrEnum):
    """Which kind of launcher a job needs, as `resources.infra` says."""

    LOCAL = "local"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


def engine_of(resources: Mapping[str, Any]) -> Engine:
    """The kind of launcher that a job needs: `local`, `slurm[/...]`, or SkyPilot for anything else."""
    head = str(resources.get("infra") or "").split("/")[0].lower()
    return Engine(head) if head in (Engine.LOCAL, Engine.SLURM) else Engine.SKYPILOT


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


def _store(url: str) -> str:
    """A URL of a checkpoint store that has a place in it and nothing else."""
    plain = unquote(url)
    if any(character < " " or character == "\x7f" for character in plain):
        raise ValueError("holds a control character, which no store has in its name; remove it")
    if {"?", "#"} & set(url):
        raise ValueError("has a query or a fragment; write s3://bucket/prefix or file:///folder")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(
            "holds a user or a password, which everybody would see who sees the job; "
            "write s3://bucket/prefix, and give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY as secrets"
        )
    return url


def _named(job_id: str) -> str:
    if not job_id:
        raise ValueError("names no job; write the id of one that has ended, or leave it out")
    return job_id


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _recovery(value: Any) -> Any:
    return {"strategy": value} if isinstance(value, str) else value


def _if_given(check: Callable[[Any], Any]) -> AfterValidator:
    """A check that lets null pass, which everywhere means that nothing was said."""
    return AfterValidator(lambda value: None if value is None else check(value))


def _accelerators(value: Any) -> Any:
    counts = value.values() if isinstance(value, Mapping) else ()
    numbers = all(n is None or (_is_number(n) and n > 0) for n in counts)
    names = value if isinstance(value, list) else ()
    if not isinstance(value, str | Mapping | list) or not numbers or not all(map(_is_text, names)):
        raise ValueError(
            f"{value!r} is no accelerator; write one such as A100:8, or a list of such"
        )
    return value


def _ports(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int | str) and not isinstance(item, bool) for item in items):
        raise ValueError(f"{value!r} is no port; write one such as 8080 or 8080-8090, or a list")
    return value


def _autostop(value: Any) -> Any:
    words = {"idle_minutes", "down", "wait_for", "hook", "hook_timeout"}
    if isinstance(value, Mapping):
        if odd := sorted(map(str, value.keys() - words)):
            raise ValueError(f"{odd[0]!r} is not known here; known are {', '.join(sorted(words))}")
    elif not isinstance(value, bool | int) and not re.fullmatch(r"\d+[mhdw]?", str(value)):
        raise ValueError(f"{value!r} is no time to stop after; write minutes such as 30, or 2h")
    return value


def _image(value: Any) -> Any:
    if not isinstance(value, str | Mapping):
        raise ValueError(f"{value!r} is no image; write its id, or a mapping of regions to ids")  # noqa: TRY004
    return value


def _workdir(value: Any) -> Any:
    if isinstance(value, str):
        return _deliverable(value)
    if not isinstance(value, Mapping) or not {"url"} <= value.keys() <= {"url", "ref"}:
        raise ValueError(f"{value!r} is no folder; write one, or url and ref of a git repository")
    if not all(map(_is_text, value.values())):
        raise ValueError("url and ref of a git repository are texts; put them in quotes")
    return value


def _mount(value: Any) -> Any:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is nothing to mount; write a path, or a bucket such as s3://b")  # noqa: TRY004
    if odd := sorted(map(str, value.keys() - MOUNT_WORDS)):
        raise ValueError(
            f"{odd[0]!r} is not known here; known are {', '.join(sorted(MOUNT_WORDS))}"
        )
    mode = value.get("mode")
    if mode is not None and str(mode).upper() not in MODES:
        raise ValueError(
            f"mode {mode!r} is not known; write {', '.join(MODES[:-1])} or {MODES[-1]}"
        )
    if not value.get("source") and not value.get("name"):
        raise ValueError("has neither source nor name; write source: s3://bucket/prefix")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


Text = Annotated[str, AfterValidator(_deliverable)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_deliverable)]
Scalar = str | int | float | None
Script = Annotated[str, Field(min_length=1), AfterValidator(_deliverable)]


class SpecModel(BaseModel):
    """Frozen, and strict about names: a word that is not known is a mistake, not a wish."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Checkpoint(SpecModel):
    """Where, how often and how many."""

    model_config = ConfigDict(serialize_by_alias=True)

    store: Annotated[Text, Field(pattern=STORE_PATTERN), AfterValidator(_store)]
    """`s3://bucket/prefix`, with endpoint and credentials as boto3 finds them, or `file:///path`."""
    from_job: Annotated[Text, AfterValidator(_named)] | None = Field(default=None, alias="from")
    """The job that it goes on from while it has no checkpoint of its own; None: from none, it begins at step 0."""
    every: Annotated[str, AfterValidator(_cadence)] = "auto"
    keep: RetentionPolicy = RetentionPolicy()
    """Which stay; a number alone is that of the last ones."""
    tidy: RetentionOwner | None = None
    """Who removes the others; None: whoever can, see `JobSpec.tidied_by`."""
    on_failure: OnFailure = OnFailure.STOP
    """What the worker does when three in a row could not be saved."""


class HoldfastBlock(SpecModel):
    """The `holdfast:` block of a job file."""

    checkpoint: Checkpoint | None = None
    """None: nothing is saved, and every preemption starts at step 0."""
    limits: Limits = Limits()
    project: Annotated[str, Field(pattern=PROJECT_NAME)] | None = None
    """None: the submission says it, or the service knows."""
    tags: dict[str, Text] = Field(default_factory=dict)
    notify: Annotated[list[Text], BeforeValidator(_listed), Field(max_length=MOST_CHANNELS)] = (
        Field(default_factory=list, repr=False, exclude=True)
    )
    """Where news of the job goes. URLs are secrets: they are in no spec that is stored or shown."""


class JobSpec(SpecModel):
    """One job, ready to be rendered."""

    name: Name
    num_nodes: Annotated[int, Field(ge=1, le=1000)] = 1
    workdir: Text | None = None
    """Absolute folder that is copied to every node, or uploaded code as `holdfast.code_upload.upload_store` names it; None means an empty one."""
    setup: Text | None = None
    """Shell text that runs on every node before `run`; None means nothing."""
    run: Script
    envs: dict[str, Text] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    """SkyPilot's words, stale ones put right."""
    secrets: tuple[str, ...] = ()
    """Names of the variables whose values are kept sealed, apart from here."""
    more: dict[str, Any] = Field(default_factory=dict)
    """Other words of a SkyPilot task, passed on as they are."""
    holdfast: HoldfastBlock = HoldfastBlock()

    @classmethod
    def stored(cls, spec: Mapping[str, Any]) -> JobSpec:
        """The specification in a stored event; words that a newer version added are ignored."""
        return cls.model_validate(spec, extra="ignore")

    @property
    def engine(self) -> Engine:
        """The kind of launcher this job needs."""
        return engine_of(self.resources)

    def with_limits(self, limits: Limits | None) -> JobSpec:
        """The same job with these limits instead of its own; itself where None."""
        if limits is None:
            return self
        block = self.holdfast.model_copy(update={"limits": limits})
        return self.model_copy(update={"holdfast": block})

    def going_on_from(self, job_id: str) -> JobSpec:
        """The same job, to go on from the checkpoints of another in its store."""
        assert self.holdfast.checkpoint, "without a store there is nothing to go on from"
        checkpoint = self.holdfast.checkpoint.model_copy(update={"from_job": job_id})
        block = self.holdfast.model_copy(update={"checkpoint": checkpoint})
        return self.model_copy(update={"holdfast": block})

    @property
    def tidied_by(self) -> RetentionOwner | None:
        """Who removes checkpoints that are not to be kept; None: there are none at all.

        The service, unless the file says otherwise, or it would stand before a locked door.
        """
        checkpoint = self.holdfast.checkpoint
        if checkpoint is None:
            return None
        return checkpoint.tidy or (
            RetentionOwner.WORKER if self.locked_out else RetentionOwner.SERVICE
        )

    @property
    def locked_out(self) -> str:
        """Why the service cannot be expected to reach the checkpoint store, in words; empty where it can."""
        checkpoint = self.holdfast.checkpoint
        if checkpoint is None:
            return ""
        if checkpoint.store.startswith("file://") and self.engine is Engine.SKYPILOT:
            return "the service does not see a folder of cloud nodes"
        if any(name.startswith("AWS_") for name in self.secrets):
            return "the keys of the store are secrets of the job, which the service does not use"
        return ""


class Strict(SpecModel):
    """Words that are passed on as they are written: what pydantic would quietly turn into another type is a mistake."""

    model_config = ConfigDict(strict=True)


class Recovery(Strict):
    """What SkyPilot does when nodes or the program are lost."""

    strategy: str | None = None
    max_restarts_on_errors: Annotated[int, Field(ge=0, le=99)] | None = None
    recover_on_exit_codes: Annotated[
        list[Annotated[int, Field(ge=0, le=255)]], BeforeValidator(_listed)
    ] = Field(default_factory=list)


class Nodes(Strict):
    """Words that SkyPilot 0.14 knows of one kind of node."""

    infra: str | None = None
    use_spot: bool | None = None
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    accelerators: Annotated[Any, _if_given(_accelerators)] = None
    accelerator_args: dict[str, Any] | None = None
    cpus: Scalar = None
    memory: Scalar = None
    instance_type: str | None = None
    disk_size: str | int | None = None
    disk_tier: str | None = None
    local_disk: str | None = None
    network_tier: str | None = None
    ports: Annotated[Any, _if_given(_ports)] = None
    labels: dict[str, Text] | None = None
    autostop: Annotated[Any, _if_given(_autostop)] = None
    image_id: Annotated[Any, _if_given(_image)] = None
    volumes: list[dict[str, Any]] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    priority_class: str | None = None
    max_hourly_cost: Annotated[float, Field(gt=0)] | None = None
    job_recovery: Annotated[Recovery, BeforeValidator(_recovery)] | None = None


class Resources(Nodes):
    """The words under `resources:`: those of one kind of node, or of several to choose from."""

    any_of: list[Nodes] | None = None
    ordered: list[Nodes] | None = None


class JobFile(SpecModel):
    """The words of a job file: those of a SkyPilot task, and `holdfast`."""

    name: Name | None = None
    num_nodes: Annotated[int, Field(ge=1, le=1000)] = 1
    workdir: Annotated[Any, _if_given(_workdir)] = None
    setup: Text | None = None
    run: Script | Annotated[list[Text], Field(min_length=1)]
    """Shell text, or a list of words that reach the program exactly as they are."""
    envs: dict[str, Text] = Field(default_factory=dict, max_length=MOST_VARIABLES)
    secrets: dict[str, Text] = Field(default_factory=dict, max_length=MOST_VARIABLES, repr=False)
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
