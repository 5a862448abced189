"""Operations of S3 on multipart uploads."""

from __future__ import annotations

from fake_s3.digests import OWN, PREFIX
from fake_s3.errors import Refusal
from fake_s3.memory import Blob
from fake_s3.objects import digests, kept, store
from fake_s3.reply import Reply, child_text, iso_date, node, number, parse_xml, xml
from fake_s3.request import Request
from fake_s3.state import ServerState
from fake_s3.uploads import Part, Upload, select_parts


def create_upload(state: ServerState, request: Request, _: Blob) -> Reply:
    headers = kept(request.headers)
    upload = state.uploads.begin(request.bucket, request.key, headers, state.now_s())
    where = (node("Bucket", request.bucket), node("Key", request.key))
    return xml(node("InitiateMultipartUploadResult", *where, node("UploadId", upload.upload_id)))


def upload_part(state: ServerState, request: Request, blob: Blob) -> Reply:
    if "x-amz-copy-source" in request.headers:
        raise Refusal("NotImplemented", "UploadPartCopy is not known.")
    which = number(request.params.get("partNumber", ""))
    upload = _upload(state, request)
    tag, checksums = digests(state, blob, request.headers)
    upload.parts[which] = Part(which, blob, tag)
    return Reply(200, {"ETag": tag, **checksums})


def complete_upload(state: ServerState, request: Request, blob: Blob) -> Reply:
    upload = _upload(state, request)
    rows = parse_xml(blob.joined()).iter("Part")
    listed = [(number(child_text(row, "PartNumber")), child_text(row, "ETag")) for row in rows]
    parts = select_parts(upload, listed, state.settings.smallest_part_bytes)
    whole = Blob(tuple(body for part in parts for body in part.blob.bodies))
    # A checksum of checksums is not a digest of the body, and is accepted unchecked.
    is_full = request.headers.get(f"{PREFIX}type") == "FULL_OBJECT"
    tag, checksums = digests(state, whole, request.headers if is_full else {})
    tag = f'"{tag[1:-1]}-{len(parts)}"'
    store(state, request, whole, tag, checksums, upload.headers)
    state.uploads.end(upload)
    where = (node("Bucket", request.bucket), node("Key", request.key))
    answer = node("CompleteMultipartUploadResult", *where, node("ETag", tag))
    if OWN in checksums:
        answer.append(node("ChecksumCRC64NVME", checksums[OWN]))
        answer.append(node("ChecksumType", "FULL_OBJECT"))
    return xml(answer)


def abort_upload(state: ServerState, request: Request, _: Blob) -> Reply:
    state.uploads.end(_upload(state, request))
    return Reply(204)


def list_uploads(state: ServerState, request: Request, _: Blob) -> Reply:
    answer = node("ListMultipartUploadsResult", node("Bucket", request.bucket))
    for upload in state.uploads.all(request.bucket, request.params.get("prefix", "")):
        names = (node("Key", upload.key), node("UploadId", upload.upload_id))
        answer.append(node("Upload", *names, node("Initiated", iso_date(upload.begun_s))))
    answer.append(node("IsTruncated", "false"))
    return xml(answer)


def list_parts(state: ServerState, request: Request, _: Blob) -> Reply:
    upload = _upload(state, request)
    answer = node("ListPartsResult", node("Key", upload.key), node("UploadId", upload.upload_id))
    for which, part in sorted(upload.parts.items()):
        facts = (node("ETag", part.etag), node("Size", len(part.blob)))
        answer.append(node("Part", node("PartNumber", which), *facts))
    answer.append(node("IsTruncated", "false"))
    return xml(answer)


def _upload(state: ServerState, request: Request) -> Upload:
    return state.uploads.find(request.params["uploadId"], request.bucket, request.key)
