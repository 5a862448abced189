"""Checks of checkpoint stores from this machine: buckets and directories.

Nodes have credentials of their own; `sky_tasks/smoke.yaml` tests the store from a node.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final

from holdfast_worker.protocol.object_stores import STORE_FORMS
from holdfast_worker.protocol.policies import ConsistencyGuarantee

from holdfast.doctor.findings import Finding, missing, ok, warning
from holdfast.domain.charges.charges import placement_warning
from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.domain.jobfile.checkpoint_spec import STORE_PATTERN
from holdfast.errors import BadRequest, CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.pricing.catalog import bundled_resource_prices

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

    from holdfast.storage.cloud import CloudProbe


_CONTENT: Final = b"holdfast doctor"
_REPLACEMENT: Final = b"holdfast doctor, again"
_ABOUT: Final = "store"


def check_cloud(store: str) -> Finding:
    """Test the same at `gs://bucket/prefix` or `az://container/prefix`."""
    try:
        from holdfast.storage.cloud import CloudProbe  # noqa: PLC0415 - only this check needs obstore
    except ModuleNotFoundError:
        return warning(
            _ABOUT, f"{store} was not tested: obstore is not installed here", "pip install obstore"
        )
    try:
        probe = CloudProbe(store, f"doctor-{secrets.token_hex(8)}")
        return _try_cloud(probe, store.rstrip("/"))
    except (CheckpointStoreRefused, CheckpointStoreUnreachable) as error:
        is_google = store.startswith("gs:")
        todo = (
            "check GOOGLE_APPLICATION_CREDENTIALS"
            if is_google
            else "check AZURE_STORAGE_ACCOUNT_NAME and its key"
        )
        return missing(_ABOUT, error.detail, f"{todo}, and the permissions of the credentials")


def _try_cloud(probe: CloudProbe, where: str) -> Finding:
    version = probe.put(_CONTENT)
    try:
        keeps_first = probe.refuses(_REPLACEMENT, "create")
        probe.put(_REPLACEMENT)
        keeps_newer = probe.refuses(_REPLACEMENT, version)
        probe.put(_CONTENT)
        read = probe.get()
    finally:
        probe.delete()
    return _finding(where, read=read, keeps_first=keeps_first, keeps_newer=keeps_newer)


def check_bucket(store: str) -> Finding:
    """Test writing, conditional writes, reading and deleting at `s3://bucket/prefix`."""
    try:
        from holdfast.storage.s3_session import S3_ERRORS, open_client  # noqa: PLC0415 - only this check needs boto3
    except ModuleNotFoundError:
        return warning(
            _ABOUT, f"{store} was not tested: boto3 is not installed here", "pip install boto3"
        )
    bucket, _, prefix = store.removeprefix("s3://").partition("/")
    key = "/".join(filter(None, (prefix.strip("/"), f"doctor-{secrets.token_hex(8)}")))
    try:
        return _try(open_client(), bucket, key)
    except (*S3_ERRORS, ValueError) as error:
        todo = "check AWS_ACCESS_KEY_ID or AWS_PROFILE, AWS_ENDPOINT_URL_S3, and the permissions of the credentials"
        return missing(_ABOUT, f"{store}: {error}", todo)


def _try(client: S3Client, bucket: str, key: str) -> Finding:
    where = f"s3://{bucket}/{key.rpartition('/')[0]}".rstrip("/")
    tag = client.put_object(Bucket=bucket, Key=key, Body=_CONTENT)["ETag"]
    try:
        keeps_first = _refuses(client, bucket, key, IfNoneMatch="*")
        client.put_object(Bucket=bucket, Key=key, Body=_REPLACEMENT)
        keeps_newer = _refuses(client, bucket, key, IfMatch=tag)
        client.put_object(Bucket=bucket, Key=key, Body=_CONTENT)
        read = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    finally:
        client.delete_object(Bucket=bucket, Key=key)
    return _finding(where, read=read, keeps_first=keeps_first, keeps_newer=keeps_newer)


def _finding(where: str, *, read: bytes, keeps_first: bool, keeps_newer: bool) -> Finding:
    if read != _CONTENT:
        return missing(
            _ABOUT, f"{where} returned different bytes than were written", "use another store"
        )
    if not keeps_first:
        return warning(
            _ABOUT,
            f"{where}: written, read and deleted, but conditional writes are not supported: it {ConsistencyGuarantee.OVERWRITES.description}",
            "not needed for jobs launched by a service; for runs without one, use a store with If-None-Match",
        )
    if not keeps_newer:
        return warning(
            _ABOUT,
            f"{where}: written, read and deleted, but If-Match is not supported, so `newest.json` may move backwards; "
            "it is only a hint, and the listing is authoritative",
            "no action, unless the bucket lists new objects late",
        )
    return ok(
        _ABOUT,
        f"{where}: written, written conditionally, read and deleted; it {ConsistencyGuarantee.CONDITIONAL.description}",
    )


def _refuses(client: S3Client, bucket: str, key: str, **condition: Any) -> bool:
    """Whether the store refuses a write whose condition is false."""
    from holdfast.storage.s3_session import refusal_status  # noqa: PLC0415 - see above

    status = refusal_status(
        lambda: client.put_object(Bucket=bucket, Key=key, Body=_REPLACEMENT, **condition)
    )
    return status == 412


Link = Callable[[Path, Path], None]


def check_folder(folder: Path, link: Link = os.link) -> Finding:
    """Test writing to a directory and its guarantees, as far as this machine can.

    The nodes also need access.
    """
    try:
        # A worker creates missing directories.
        there = next(place for place in (folder, *folder.parents) if place.exists())
        with NamedTemporaryFile(dir=there) as file:
            problem = _second_name(Path(file.name), link)
    except OSError as error:
        return warning(
            "store",
            f"{folder} cannot be written here: {error.strerror}",
            "use a directory that all nodes share and may write, or a bucket such as s3://bucket/prefix",
        )
    if problem:
        return missing(
            "store",
            f"{folder} can be written here, but has no hard links, which commits need: {problem}",
            "use a directory of another file system, or a bucket such as s3://bucket/prefix",
        )
    return ok(
        "store",
        f"{folder} can be written here; all nodes of a job must share it; it {ConsistencyGuarantee.CONDITIONAL.description}",
    )


def _second_name(file: Path, link: Link) -> str:
    """Return why a hard link cannot be created exclusively; empty if it can."""
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
    return "the second of two links replaces the first"


def store_in(file: Path) -> str | None:
    """Read the store of a job file; None if it names none. The service validates the rest.

    Raises:
        BadRequest: the file does not exist, or is not YAML.
    """
    value = _job_file(file)
    for word in ("holdfast", "checkpoint", "store"):
        value = value.get(word) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _job_file(file: Path) -> Any:
    try:
        return load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotReadable) as error:
        raise BadRequest(f"{file} cannot be read as a job file: {error}") from error


def check_distance(file: Path, store: str) -> Finding | None:
    """Warn of a bucket in another region than a job file names; None if not, or if unknown."""
    if not store.startswith("s3://"):
        return None
    try:
        from holdfast.storage.s3 import S3CheckpointBucket  # noqa: PLC0415 - only this check needs boto3
        from holdfast.storage.s3_session import open_client  # noqa: PLC0415 - as above

        bucket = store.removeprefix("s3://").partition("/")[0]
        place = S3CheckpointBucket(bucket, "", open_client()).place()
    except (ModuleNotFoundError, ValueError, CheckpointStoreRefused, CheckpointStoreUnreachable):
        return None  # The check of the store itself says why.
    return distance_finding(file, place)


def distance_finding(file: Path, place: str) -> Finding | None:
    """Warn of a store at another place than the region of a job file; None without one."""
    value = _job_file(file)
    resources = value.get("resources") if isinstance(value, dict) else None
    infra = resources.get("infra") if isinstance(resources, dict) else None
    region = "/".join(str(infra or "").strip("/").lower().split("/")[:2])
    text = placement_warning(place, region, 0, bundled_resource_prices())
    sentence, _, todo = text.partition("; ")
    return warning(_ABOUT, sentence, todo) if text else None


def check_store(store: str) -> Finding:
    """Check a checkpoint store from this machine."""
    if not re.match(STORE_PATTERN, store):
        todo = f"write {STORE_FORMS}"
        return missing("store", f"{store} is not a store", todo)
    if store.startswith("file://"):
        return check_folder(Path(store.removeprefix("file://")))
    return check_bucket(store) if store.startswith("s3://") else check_cloud(store)
