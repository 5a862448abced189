"""Operations of S3 on buckets and on many objects."""

from __future__ import annotations

import base64
import binascii
from xml.etree import ElementTree as ET

from fake_s3.buckets import StoredObject
from fake_s3.clouds import AZURE, azure_batch, azure_page
from fake_s3.errors import Refusal
from fake_s3.memory import Blob
from fake_s3.reply import Reply, child_text, encode_key, iso_date, node, number, parse_xml, xml
from fake_s3.request import Request
from fake_s3.state import ServerState


def create_bucket(state: ServerState, request: Request, _: Blob) -> Reply:
    state.objects.make(request.bucket)
    return Reply(200, {"Location": f"/{request.bucket}"})


def delete_bucket(state: ServerState, request: Request, _: Blob) -> Reply:
    state.objects.drop(request.bucket)
    return Reply(204)


def head_bucket(_state: ServerState, _request: Request, _: Blob) -> Reply:
    return Reply(200, {"x-amz-bucket-region": "us-east-1"})


def locate_bucket(_state: ServerState, _request: Request, _: Blob) -> Reply:
    return xml(node("LocationConstraint", "us-east-1"))


def list_buckets(state: ServerState, _request: Request, _: Blob) -> Reply:
    made = node("CreationDate", iso_date(state.now_s()))
    names = [node("Bucket", node("Name", name), made) for name in state.objects.buckets()]
    owner = node("Owner", node("ID", "fake_s3"))
    return xml(node("ListAllMyBucketsResult", owner, node("Buckets", *names)))


def list_objects(state: ServerState, request: Request, _: Blob) -> Reply:
    params = request.params
    encoding = params.get("encoding-type")
    prefix, delimiter = params.get("prefix", ""), params.get("delimiter", "")
    token = params.get("continuation-token", "")
    after = _start_key(token) if token else params.get("start-after", "")
    limit = min(number(params.get("max-keys", "1000")), state.settings.page_keys)
    page = state.objects.page(request.bucket, prefix, delimiter, after, limit)
    if request.dialect == AZURE:
        return azure_page(request, page, _token(page.resume_after) if page.resume_after else "")
    answer = node(
        "ListBucketResult",
        node("Name", request.bucket),
        node("Prefix", encode_key(prefix, encoding)),
        node("MaxKeys", limit),
        node("KeyCount", len(page.items) + len(page.prefixes)),
        node("IsTruncated", "false" if page.resume_after is None else "true"),
        *[node("EncodingType", name) for name in [encoding] if name],
        *[node("Delimiter", encode_key(mark, encoding)) for mark in [delimiter] if mark],
        *[node("ContinuationToken", text) for text in [token] if text],
    )
    if page.resume_after is not None:
        answer.append(node("NextContinuationToken", _token(page.resume_after)))
    answer.extend(_row(item, encoding) for item in page.items)
    found = (node("Prefix", encode_key(name, encoding)) for name in page.prefixes)
    answer.extend(node("CommonPrefixes", name) for name in found)
    return xml(answer)


def delete_objects(state: ServerState, request: Request, blob: Blob) -> Reply:
    if request.dialect == AZURE:
        return azure_batch(state, request, blob)
    root = parse_xml(blob.joined())
    answer = node("DeleteResult")
    for row in root.iter("Object"):
        key = child_text(row, "Key")
        state.objects.remove(request.bucket, key)
        if root.findtext("Quiet") != "true":
            answer.append(node("Deleted", node("Key", key)))
    return xml(answer)


def _row(item: StoredObject, encoding: str | None) -> ET.Element:
    return node(
        "Contents",
        node("Key", encode_key(item.key, encoding)),
        node("LastModified", iso_date(item.modified_s)),
        node("ETag", item.etag),
        node("Size", len(item.blob)),
        node("StorageClass", "STANDARD"),
    )


def _token(after: str) -> str:
    return base64.urlsafe_b64encode(after.encode()).decode()


def _start_key(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise Refusal("InvalidArgument", "The continuation token is none of ours.") from error
