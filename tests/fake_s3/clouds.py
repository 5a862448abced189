"""Two other protocols of the fake S3: Google's XML API below `/_google`, Azure's below `/_azure`.

Both are translated to operations of S3, so that faults, counters and objects are the same. Google's protocol is S3's
with generations instead of ETags in conditions. Azure has other parameters, documents and error codes, and deletes in
batches. Both change the generation of an object with every write, also of equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from fake_s3.buckets import Page, StoredObject
from fake_s3.errors import Refusal
from fake_s3.memory import Blob
from fake_s3.reply import Reply, error_reply, http_date, node, xml
from fake_s3.request import Request
from fake_s3.state import ServerState

GOOGLE: Final = "_google"
AZURE: Final = "_azure"
GENERATION_MATCH: Final = "x-goog-if-generation-match"
AZURE_PARAMS: Final = {"marker": "continuation-token", "maxresults": "max-keys"}


@dataclass(frozen=True)
class AzureError:
    """An error of Azure."""

    code: str
    status: int


AZURE_ERRORS: Final = {
    "AccessDenied": AzureError("AuthorizationPermissionMismatch", 403),
    "NoSuchBucket": AzureError("ContainerNotFound", 404),
    "NoSuchKey": AzureError("BlobNotFound", 404),
    "PreconditionFailed": AzureError("ConditionNotMet", 412),
    "SlowDown": AzureError("ServerBusy", 503),
}
"""Azure's errors by the codes of S3; others are the same."""
BATCH_LINE: Final = re.compile(r"^DELETE (\S+) HTTP/1\.1\r?$", re.MULTILINE)
BATCH_BOUNDARY: Final = "batchresponse_fake"


def translate(request: Request) -> None:
    """Change a request of another protocol into one of S3."""
    if request.bucket not in {GOOGLE, AZURE}:
        return
    request.dialect = request.bucket
    request.bucket, _, request.key = request.key.partition("/")
    if request.dialect == GOOGLE:
        return
    comp = request.params.pop("comp", "")
    request.params.pop("restype", "")
    if comp == "list":
        request.params["list-type"] = "2"
    elif comp == "batch":
        request.params["delete"] = ""
    for name, ours in AZURE_PARAMS.items():
        if name in request.params:
            request.params[ours] = request.params.pop(name)
    if (tag := request.headers.pop("if-match", "")) and tag != "*":
        request.headers[GENERATION_MATCH] = _generation(tag)
    elif request.headers.pop("if-none-match", "") == "*":
        request.headers[GENERATION_MATCH] = "0"


def _generation(tag: str) -> str:
    """The generation in an ETag of Azure; one that no object has if it is no such ETag."""
    found = re.fullmatch(r'"?0x([0-9A-F]+)"?', tag)
    return str(int(found[1], 16)) if found else "none"


def versioned(request: Request, item: StoredObject, headers: dict[str, str]) -> dict[str, str]:
    """The headers of a reply about an object, in the protocol of the request."""
    if request.dialect == GOOGLE:
        return {**headers, "x-goog-generation": str(item.generation)}
    if request.dialect == AZURE:
        return {
            **headers,
            "ETag": f'"0x{item.generation:X}"',
            "Last-Modified": http_date(item.modified_s),
            "x-ms-blob-type": "BlockBlob",
        }
    return headers


def refuse(request: Request, refusal: Refusal) -> Reply:
    """The error document of a refusal, in the protocol of the request."""
    if request.dialect != AZURE:
        return error_reply(refusal, request.key)
    ours = AZURE_ERRORS.get(refusal.code, AzureError(refusal.code, refusal.status))
    if refusal.code == "PreconditionFailed" and request.headers.get(GENERATION_MATCH) == "0":
        ours = AzureError("BlobAlreadyExists", 409)
    reply = xml(
        node("Error", node("Code", ours.code), node("Message", refusal.message)), ours.status
    )
    reply.headers["x-ms-error-code"] = ours.code
    return reply


def azure_page(request: Request, page: Page, next_token: str) -> Reply:
    """The document of a listing of Azure."""
    blobs = node("Blobs", *[_blob(item) for item in page.items])
    blobs.extend(node("BlobPrefix", node("Name", name)) for name in page.prefixes)
    root = node("EnumerationResults", blobs, node("NextMarker", next_token))
    root.set("ContainerName", request.bucket)
    return xml(root)


def _blob(item: StoredObject) -> ET.Element:
    properties = node(
        "Properties",
        node("Last-Modified", http_date(item.modified_s)),
        node("Etag", f"0x{item.generation:X}"),
        node("Content-Length", len(item.blob)),
        node("Content-Type", "application/octet-stream"),
        node("BlobType", "BlockBlob"),
    )
    return node("Blob", node("Name", item.key), properties)


def azure_batch(state: ServerState, request: Request, blob: Blob) -> Reply:
    """Delete the objects of a batch of Azure."""
    parts = []
    for number, path in enumerate(BATCH_LINE.findall(blob.joined().decode())):
        key = unquote(path).partition(f"/{request.bucket}/")[2]
        is_found = state.objects.has(request.bucket, key)
        state.objects.remove(request.bucket, key)
        result = "202 Accepted" if is_found else "404 The specified blob does not exist."
        lines = [
            "Content-Type: application/http",
            f"Content-ID: {number}",
            "",
            f"HTTP/1.1 {result}",
        ]
        lines += ["x-ms-version: 2021-12-02", "Content-Length: 0", "", ""]
        parts.append("\r\n".join([f"--{BATCH_BOUNDARY}", *lines]))
    body = "".join([*parts, f"--{BATCH_BOUNDARY}--\r\n"]).encode()
    headers = {"Content-Type": f"multipart/mixed; boundary={BATCH_BOUNDARY}"}
    return Reply(202, headers, [memoryview(body)])
