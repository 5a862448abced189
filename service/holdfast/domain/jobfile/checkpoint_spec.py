"""Where and how often a job saves: the `checkpoint:` block of a job file."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import unquote

from holdfast_worker.protocol.object_stores import BUCKET, CLOUDS, STORE_FORMS
from holdfast_worker.protocol.policies import (
    Cadence,
    OnFailure,
    RetentionOwner,
    parse_memory_cadence,
)
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from holdfast.domain.jobfile.resources import SpecModel, Text
from holdfast.domain.jobfile.retention_policy import RetentionPolicy

STORE_PATTERN: Final = r"^((s3|gs|az)://[^/\s]+(/.*)?|file:///.+)$"
STORE_SECRETS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Variables with the credentials of a store, by the scheme of its URL, for messages."""


def _cadence(text: str) -> str:
    Cadence.parse(text)
    return text


def _memory(text: str) -> str:
    parse_memory_cadence(text)
    return text


def _off(value: Any) -> Any:
    """YAML reads `off` as false, and `on` as true."""
    return {False: "off", True: "on"}[value] if isinstance(value, bool) else value


def _store(url: str) -> str:
    """Check that a URL names only a location in a checkpoint store."""
    plain = unquote(url)
    if any(character < " " or character == "\x7f" for character in plain):
        raise ValueError("contains a control character, which store names cannot have; remove it")
    if {"?", "#"} & set(url):
        raise ValueError(f"has a query or a fragment; write {STORE_FORMS}")
    scheme, _, rest = url.partition("://")
    if scheme != "file" and {".", ".."} & set(rest.split("/")):
        raise ValueError("has the part . or .., which keys in buckets cannot have; remove it")
    bucket = rest.partition("/")[0]
    if "@" in bucket:
        raise ValueError(
            "contains a user or a password, which all viewers of the job could read; "
            f"write {scheme}://bucket/prefix, and set {STORE_SECRETS.get(scheme, 'credentials')} as secrets"
        )
    if scheme in CLOUDS and not BUCKET.fullmatch(bucket):
        raise ValueError(
            f"{bucket!r} is not the name of a bucket; write letters, digits, and . _ -"
        )
    if set("[]") & set(bucket):
        raise ValueError(
            "has a bracket in the name of its bucket, which names cannot have; remove it"
        )
    return url


def _named(job_id: str) -> str:
    if not job_id:
        raise ValueError("names no job; write the id of an ended job, or remove it")
    return job_id


class Checkpoint(SpecModel):
    """Checkpoint settings: store, interval and retention."""

    model_config = ConfigDict(serialize_by_alias=True)

    store: Annotated[Text, Field(pattern=STORE_PATTERN), AfterValidator(_store)]
    """`s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`, with endpoint and
    credentials from variables, or `file:///path`."""
    from_job: Annotated[Text, AfterValidator(_named)] | None = Field(default=None, alias="from")
    """The job to continue from until this job has its own checkpoint; None to start at step 0."""
    every: Annotated[str, AfterValidator(_cadence)] = "auto"
    memory: Annotated[str, BeforeValidator(_off), AfterValidator(_memory)] = "auto"
    """How often snapshots are copied into the memory of the nodes: a cadence or `off`."""
    keep: RetentionPolicy = RetentionPolicy()
    """Checkpoints to keep; a plain number keeps that many of the newest."""
    tidy: RetentionOwner | None = None
    """Owner of retention; None for the default, see `JobSpec.retention_owner`."""
    on_failure: OnFailure = OnFailure.STOP
    """Action of the worker after three consecutive failed checkpoints."""
