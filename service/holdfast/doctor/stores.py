"""A bucket as a checkpoint store, tried from here as a worker uses it.

Nodes have keys of their own; `sky_tasks/smoke.yaml` tries the store from one of them.

A folder as a checkpoint store, tried from here.

Checkpoint stores: which one a job file names, and whether it can be used from here.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final

from holdfast_worker.protocol.policies import ConsistencyGuarantee

from holdfast.doctor.findings import Finding, missing, ok, warning
from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.domain.jobfile.spec import STORE_PATTERN
from holdfast.errors import BadRequest

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


_CONTENT: Final = b"holdfast doctor"
_OTHER: Final = b"holdfast doctor, again"
_ABOUT: Final = "store"


def try_bucket(store: str) -> Finding:
    """Whether one can write, write and replace on a condition, read and delete at `s3://bucket/prefix`, and what it promises."""
    try:
        from holdfast.storage.s3_session import S3_ERRORS, open_client  # noqa: PLC0415 - only who asks needs boto3
    except ModuleNotFoundError:
        return warning(
            _ABOUT, f"{store} was not tried: boto3 is not installed here", "pip install boto3"
        )
    bucket, _, prefix = store.removeprefix("s3://").partition("/")
    key = "/".join(filter(None, (prefix.strip("/"), f"doctor-{secrets.token_hex(8)}")))
    try:
        return _try(open_client(), bucket, key)
    except (*S3_ERRORS, ValueError) as error:
        todo = "look at AWS_ACCESS_KEY_ID or AWS_PROFILE, AWS_ENDPOINT_URL_S3, and what the keys may do"
        return missing(_ABOUT, f"{store}: {error}", todo)


def _try(client: S3Client, bucket: str, key: str) -> Finding:
    where = f"s3://{bucket}/{key.rpartition('/')[0]}".rstrip("/")
    tag = client.put_object(Bucket=bucket, Key=key, Body=_CONTENT)["ETag"]
    try:
        keeps_first = _refuses(client, bucket, key, IfNoneMatch="*")
        client.put_object(Bucket=bucket, Key=key, Body=_OTHER)
        keeps_newer = _refuses(client, bucket, key, IfMatch=tag)
        client.put_object(Bucket=bucket, Key=key, Body=_CONTENT)
        read = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    finally:
        client.delete_object(Bucket=bucket, Key=key)
    if read != _CONTENT:
        return missing(_ABOUT, f"{where} gives back other bytes than were written", "use another")
    if not keeps_first:
        return warning(
            _ABOUT,
            f"{where}: written, read and deleted, but conditional writes are not kept: it {ConsistencyGuarantee.OVERWRITES.words}",
            "checkpoints do without as long as a service launches the job; for bare runs take a store with If-None-Match",
        )
    if not keeps_newer:
        return warning(
            _ABOUT,
            f"{where}: written, read and deleted, but If-Match is not kept, so that `newest.json` may be set back; "
            "it is a hint, and what is listed counts",
            "nothing, unless the bucket lists late what was written",
        )
    return ok(
        _ABOUT,
        f"{where}: written, written conditionally, read and deleted; it {ConsistencyGuarantee.CONDITIONAL.words}",
    )


def _refuses(client: S3Client, bucket: str, key: str, **condition: Any) -> bool:
    """Whether a write on a condition that does not hold is refused."""
    from holdfast.storage.s3_session import refusal_of  # noqa: PLC0415 - see above

    status = refusal_of(lambda: client.put_object(Bucket=bucket, Key=key, Body=_OTHER, **condition))
    return status == 412


Link = Callable[[Path, Path], None]


def try_folder(folder: Path, link: Link = os.link) -> Finding:
    """Whether one can write there, and what it promises, as far as this machine can tell: it is the nodes that need it."""
    try:
        # A worker makes what is not there yet.
        there = next(place for place in (folder, *folder.parents) if place.exists())
        with NamedTemporaryFile(dir=there) as file:
            problem = _second_name(Path(file.name), link)
    except OSError as error:
        return warning(
            "store",
            f"{folder} cannot be written here: {error.strerror}",
            "take a folder that all nodes share and may write, or s3://bucket/prefix",
        )
    if problem:
        return missing(
            "store",
            f"{folder} can be written here, and has no hard links, by which commits are made: {problem}",
            "take a folder of another file system, or s3://bucket/prefix",
        )
    return ok(
        "store",
        f"{folder} can be written here; all nodes of a job have to share it; it {ConsistencyGuarantee.CONDITIONAL.words}",
    )


def _second_name(file: Path, link: Link) -> str:
    """Why this file cannot be given another name just once; empty where it can."""
    name = file.with_name(f"doctor-{secrets.token_hex(8)}")
    try:
        link(file, name)
    except OSError as error:
        return error.strerror or str(error)
    try:
        link(file, name)
    except FileExistsError:
        return ""
    finally:
        name.unlink()
    return "the second of two replaces the first"


def store_in(file: Path) -> str | None:
    """The store of a job file; None if it names none. The rest of the file is for the service to judge.

    Raises:
        BadRequest: there is no such file, or it is not YAML.
    """
    try:
        told = load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotReadable) as error:
        raise BadRequest(f"{file} cannot be read as a job file: {error}") from error
    for word in ("holdfast", "checkpoint", "store"):
        told = told.get(word) if isinstance(told, dict) else None
    return told if isinstance(told, str) else None


def try_store(store: str) -> Finding:
    """What a job with this store would meet, tried from here."""
    if not re.match(STORE_PATTERN, store):
        todo = "write it as s3://bucket/prefix, or as file:///folder"
        return missing("store", f"{store} is no store", todo)
    if store.startswith("file://"):
        return try_folder(Path(store.removeprefix("file://")))
    return try_bucket(store)
