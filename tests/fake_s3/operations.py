"""The function of each operation of S3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fake_s3 import lists, multipart, objects
from fake_s3.errors import NotModified, Refusal
from fake_s3.memory import Blob
from fake_s3.reply import Reply
from fake_s3.request import Request
from fake_s3.state import ServerState

OPERATIONS: Final[Mapping[str, Callable[[ServerState, Request, Blob], Reply]]] = {
    "AbortMultipartUpload": multipart.abort_upload,
    "CompleteMultipartUpload": multipart.complete_upload,
    "CopyObject": objects.copy_object,
    "CreateBucket": lists.create_bucket,
    "CreateMultipartUpload": multipart.create_upload,
    "DeleteBucket": lists.delete_bucket,
    "DeleteObject": objects.delete_object,
    "DeleteObjects": lists.delete_objects,
    "GetBucketLocation": lists.locate_bucket,
    "GetObject": objects.get_object,
    "HeadBucket": lists.head_bucket,
    "HeadObject": objects.get_object,
    "ListBuckets": lists.list_buckets,
    "ListMultipartUploads": multipart.list_uploads,
    "ListObjectsV2": lists.list_objects,
    "ListParts": multipart.list_parts,
    "PutObject": objects.put_object,
    "UploadPart": multipart.upload_part,
}


def execute(state: ServerState, request: Request, blob: Blob) -> Reply:
    """Execute a request with this body and return the reply.

    Raises:
        Refusal: S3 refuses the request.
    """
    operation = OPERATIONS.get(request.operation)
    if operation is None:
        raise Refusal("NotImplemented", f"{request.method} with {sorted(request.params)}.")
    try:
        return operation(state, request, blob)
    except NotModified:
        return Reply(304)
