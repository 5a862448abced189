"""The operations of S3 about buckets and many objects."""

from __future__ import annotations

import base64
import binascii
from xml.etree import ElementTree as ET

from fake_s3.buckets import StoredObject
from fake_s3.errors import Refusal
from fake_s3.memory import Blob
from fake_s3.reply import Reply, encoded, iso_date, node, number, parsed, wanted, xml
from fake_s3.request import Request
from fake_s3.state import ServerState


def create_bucket(depot: ServerState, request: Request, _: Blob) -> Reply:
    depot.shelf.make(request.bucket)
    return Reply(200, {"Location": f"/{request.bucket}"})


def delete_bucket(depot: ServerState, request: Request, _: Blob) -> Reply:
    depot.shelf.drop(request.bucket)
    return Reply(204)


def head_bucket(_depot: ServerState, _request: Request, _: Blob) -> Reply:
    return Reply(200, {"x-amz-bucket-region": "us-east-1"})


def locate_bucket(_depot: ServerState, _request: Request, _: Blob) -> Reply:
    return xml(node("LocationConstraint", "us-east-1"))


def list_buckets(depot: ServerState, _request: Request, _: Blob) -> Reply:
    made = node("CreationDate", iso_date(depot.now_s()))
    names = [node("Bucket", node("Name", name), made) for name in depot.shelf.buckets()]
    owner = node("Owner", node("ID", "fake_s3"))
    return xml(node("ListAllMyBucketsResult", owner, node("Buckets", *names)))


def list_objects(depot: ServerState, request: Request, _: Blob) -> Reply:
    params = request.params
    encoding = params.get("encoding-type")
    prefix, delimiter = params.get("prefix", ""), params.get("delimiter", "")
    token = params.get("continuation-token", "")
    after = _place(token) if token else params.get("start-after", "")
    limit = min(number(params.get("max-keys", "1000")), depot.settings.page_keys)
    page = depot.shelf.page(request.bucket, prefix, delimiter, after, limit)
    answer = node(
        "ListBucketResult",
        node("Name", request.bucket),
        node("Prefix", encoded(prefix, encoding)),
        node("MaxKeys", limit),
        node("KeyCount", len(page.items) + len(page.prefixes)),
        node("IsTruncated", "false" if page.resume_after is None else "true"),
        *[node("EncodingType", name) for name in [encoding] if name],
        *[node("Delimiter", encoded(mark, encoding)) for mark in [delimiter] if mark],
        *[node("ContinuationToken", text) for text in [token] if text],
    )
    if page.resume_after is not None:
        answer.append(node("NextContinuationToken", _token(page.resume_after)))
    answer.extend(_row(item, encoding) for item in page.items)
    found = (node("Prefix", encoded(name, encoding)) for name in page.prefixes)
    answer.extend(node("CommonPrefixes", name) for name in found)
    return xml(answer)


def delete_objects(depot: ServerState, request: Request, blob: Blob) -> Reply:
    root = parsed(blob.joined())
    answer = node("DeleteResult")
    for row in root.iter("Object"):
        key = wanted(row, "Key")
        depot.shelf.remove(request.bucket, key)
        if root.findtext("Quiet") != "true":
            answer.append(node("Deleted", node("Key", key)))
    return xml(answer)


def _row(item: StoredObject, encoding: str | None) -> ET.Element:
    return node(
        "Contents",
        node("Key", encoded(item.key, encoding)),
        node("LastModified", iso_date(item.modified_s)),
        node("ETag", item.etag),
        node("Size", len(item.blob)),
        node("StorageClass", "STANDARD"),
    )


def _token(after: str) -> str:
    return base64.urlsafe_b64encode(after.encode()).decode()


def _place(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Refusal("InvalidArgument", "The continuation token is none of ours.") from error
