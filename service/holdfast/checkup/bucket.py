"""A bucket as a checkpoint store, tried from here as a worker uses it.

Nodes have keys of their own; `sky_tasks/smoke.yaml` tries the store from one of them.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from holdfast_worker.wire import Guarantee

from holdfast.checkup.findings import Finding, missing, ok, warning

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_CONTENT: Final = b"holdfast doctor"
_OTHER: Final = b"holdfast doctor, again"
_ABOUT: Final = "store"


def try_bucket(store: str) -> Finding:
    """Whether one can write, write and replace on a condition, read and delete at `s3://bucket/prefix`, and what it promises."""
    try:
        from holdfast.adapters.depots.session import S3_ERRORS, open_client  # noqa: PLC0415 - only who asks needs boto3
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
            f"{where}: written, read and deleted, but conditional writes are not kept: it {Guarantee.OVERWRITES.words}",
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
        f"{where}: written, written conditionally, read and deleted; it {Guarantee.CONDITIONAL.words}",
    )


def _refuses(client: S3Client, bucket: str, key: str, **condition: Any) -> bool:
    """Whether a write on a condition that does not hold is refused."""
    from holdfast.adapters.depots.session import refusal_of  # noqa: PLC0415 - see above

    status = refusal_of(lambda: client.put_object(Bucket=bucket, Key=key, Body=_OTHER, **condition))
    return status == 412
