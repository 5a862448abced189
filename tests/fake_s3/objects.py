"""Operations of S3 on single objects."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from fake_s3.buckets import NO_CONDITION, Condition, StoredObject
from fake_s3.clouds import AZURE, versioned
from fake_s3.digests import PREFIX, etag, verified
from fake_s3.errors import Refusal
from fake_s3.memory import Blob
from fake_s3.reply import Reply, http_date, iso_date, node, xml
from fake_s3.request import Request
from fake_s3.state import ServerState

KEPT: Final = {"cache-control", "content-disposition", "content-language", "content-type", "expires"}  # fmt: skip
"""Headers that are stored with an object, besides the client's own metadata."""
RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")


def put_object(state: ServerState, request: Request, blob: Blob) -> Reply:
    tag, checksums = digests(state, blob, request.headers)
    item = store(state, request, blob, tag, checksums, kept(request.headers))
    headers = versioned(request, item, {"ETag": tag, **_checked(checksums)})
    return Reply(201 if request.dialect == AZURE else 200, headers)


def copy_object(state: ServerState, request: Request, _: Blob) -> Reply:
    path = request.headers["x-amz-copy-source"].partition("?")[0]
    bucket, _slash, key = unquote(path).removeprefix("/").partition("/")
    source = state.objects.get(bucket, key)
    replaces = request.headers.get("x-amz-metadata-directive") == "REPLACE"
    headers = kept(request.headers) if replaces else source.headers
    store(state, request, source.blob, source.etag, source.checksums, headers)
    modified = node("LastModified", iso_date(state.now_s()))
    return xml(node("CopyObjectResult", node("ETag", source.etag), modified))


def get_object(state: ServerState, request: Request, _: Blob) -> Reply:
    """Handle GET and HEAD."""
    item = state.objects.get(request.bucket, request.key)
    Condition.of(request.headers).check_read(item)
    span = _span(request, item.blob)
    start, end = span or (0, len(item.blob))
    headers = {
        "ETag": item.etag,
        "Last-Modified": http_date(item.modified_s),
        "Accept-Ranges": "bytes",
        "content-type": "binary/octet-stream",
        **item.headers,
    }
    headers = versioned(request, item, headers)
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(item.blob)}"
    elif request.headers.get(f"{PREFIX}mode", "").upper() == "ENABLED":
        headers |= _checked(item.checksums)
    if "partNumber" in request.params and len(item.blob.bodies) > 1:
        headers["x-amz-mp-parts-count"] = f"{len(item.blob.bodies)}"
    views = [] if request.method == "HEAD" else item.blob.views(start, end)
    return Reply(206 if span else 200, headers, views, item.blob, end - start)


def delete_object(state: ServerState, request: Request, _: Blob) -> Reply:
    if request.dialect and not state.objects.has(request.bucket, request.key):
        raise Refusal("NoSuchKey")
    state.objects.remove(request.bucket, request.key, condition(state, request))
    return Reply(204)


def condition(state: ServerState, request: Request) -> Condition:
    """The condition of a write; empty if the server ignores conditions."""
    if not state.settings.conditional:
        return NO_CONDITION
    asked = Condition.of(request.headers)
    if state.settings.matching:
        return asked
    is_new = asked.if_generation == "0"
    return replace(asked, if_match="", if_generation="0" if is_new else "")


def digests(
    state: ServerState, blob: Blob, headers: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """The ETag and the checksums of a received body.

    Raises:
        Refusal: A checksum in `headers` does not match.
    """
    if state.settings.null:
        return f'"{state.serial():016x}"', {}
    views = blob.views()
    checksums = verified(views, headers)
    return etag(views, checksums, is_md5=state.settings.md5), checksums


def store(state: ServerState, request: Request, blob: Blob, tag: str, checksums: Mapping[str, str], headers: Mapping[str, str]) -> StoredObject:  # fmt: skip
    """Store the object under the key of the request if its condition holds."""
    item = StoredObject(
        key=request.key,
        blob=blob,
        etag=tag,
        checksums=checksums,
        headers=headers,
        generation=state.serial(),
        modified_s=state.now_s(),
        listed_from_s=time.monotonic() + request.unlisted_s if request.unlisted_s else 0.0,
    )
    state.objects.put(request.bucket, item, condition(state, request))
    return item


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request that are stored with its object."""
    stored = {k: v for k, v in headers.items() if k in KEPT or k.startswith("x-amz-meta-")}
    encodings = headers.get("content-encoding", "").split(",")
    if encoding := ",".join(e.strip() for e in encodings if e.strip() not in {"", "aws-chunked"}):
        stored["content-encoding"] = encoding
    return stored


def _checked(checksums: Mapping[str, str]) -> dict[str, str]:
    return {**checksums, f"{PREFIX}type": "FULL_OBJECT"} if checksums else {}


def _span(request: Request, blob: Blob) -> tuple[int, int] | None:
    """The requested byte range; None for all bytes, also if S3 does not support the range."""
    if part := request.params.get("partNumber"):
        if not part.isdecimal() or not 0 < int(part) <= max(1, len(blob.bodies)):
            raise Refusal("InvalidPart", f"There is no part {part}.")
        return blob.span(int(part))
    found = RANGE.fullmatch(request.headers.get("range", ""))
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    size = len(blob)
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1 if last else size, size)
        if last and int(last) < int(first):
            return None
    if start >= end:
        raise Refusal("InvalidRange")
    return start, end
