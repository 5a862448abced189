"""The operations of S3 about objects that come in parts."""

from __future__ import annotations

from fake_s3.digests import OWN, PREFIX
from fake_s3.errors import Refusal
from fake_s3.memory import Blob
from fake_s3.objects import digests, kept, store
from fake_s3.reply import Reply, iso_date, node, number, parsed, wanted, xml
from fake_s3.request import Request
from fake_s3.state import ServerState
from fake_s3.uploads import Part, Upload, chosen


def create_upload(depot: ServerState, request: Request, _: Blob) -> Reply:
    headers = kept(request.headers)
    upload = depot.uploads.begin(request.bucket, request.key, headers, depot.now_s())
    where = (node("Bucket", request.bucket), node("Key", request.key))
    return xml(node("InitiateMultipartUploadResult", *where, node("UploadId", upload.upload_id)))


def upload_part(depot: ServerState, request: Request, blob: Blob) -> Reply:
    if "x-amz-copy-source" in request.headers:
        raise Refusal("NotImplemented", "UploadPartCopy is not known.")
    which = number(request.params.get("partNumber", ""))
    upload = _upload(depot, request)
    tag, checksums = digests(depot, blob, request.headers)
    upload.parts[which] = Part(which, blob, tag)
    return Reply(200, {"ETag": tag, **checksums})


def complete_upload(depot: ServerState, request: Request, blob: Blob) -> Reply:
    upload = _upload(depot, request)
    rows = parsed(blob.joined()).iter("Part")
    listed = [(number(wanted(row, "PartNumber")), wanted(row, "ETag")) for row in rows]
    parts = chosen(upload, listed, depot.settings.smallest_part_bytes)
    whole = Blob(tuple(body for part in parts for body in part.blob.bodies))
    # A checksum of checksums would be another thing, and is believed.
    is_full = request.headers.get(f"{PREFIX}type") == "FULL_OBJECT"
    tag, checksums = digests(depot, whole, request.headers if is_full else {})
    tag = f'"{tag[1:-1]}-{len(parts)}"'
    store(depot, request, whole, tag, checksums, upload.headers)
    depot.uploads.end(upload)
    where = (node("Bucket", request.bucket), node("Key", request.key))
    answer = node("CompleteMultipartUploadResult", *where, node("ETag", tag))
    if OWN in checksums:
        answer.append(node("ChecksumCRC64NVME", checksums[OWN]))
        answer.append(node("ChecksumType", "FULL_OBJECT"))
    return xml(answer)


def abort_upload(depot: ServerState, request: Request, _: Blob) -> Reply:
    depot.uploads.end(_upload(depot, request))
    return Reply(204)


def list_uploads(depot: ServerState, request: Request, _: Blob) -> Reply:
    answer = node("ListMultipartUploadsResult", node("Bucket", request.bucket))
    for upload in depot.uploads.all(request.bucket, request.params.get("prefix", "")):
        names = (node("Key", upload.key), node("UploadId", upload.upload_id))
        answer.append(node("Upload", *names, node("Initiated", iso_date(upload.begun_s))))
    answer.append(node("IsTruncated", "false"))
    return xml(answer)


def list_parts(depot: ServerState, request: Request, _: Blob) -> Reply:
    upload = _upload(depot, request)
    answer = node("ListPartsResult", node("Key", upload.key), node("UploadId", upload.upload_id))
    for which, part in sorted(upload.parts.items()):
        facts = (node("ETag", part.etag), node("Size", len(part.blob)))
        answer.append(node("Part", node("PartNumber", which), *facts))
    answer.append(node("IsTruncated", "false"))
    return xml(answer)


def _upload(depot: ServerState, request: Request) -> Upload:
    return depot.uploads.find(request.params["uploadId"], request.bucket, request.key)
