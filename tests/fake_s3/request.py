"""One request as it came in: whose object it is about, and which operation of S3 it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from fake_s3.wire import Gone, Source

ROUTES: Final = (  # Method, about an object or not, parameter that must be there, operation. The first that fits.
    ("PUT", True, "uploadId", "UploadPart"),
    ("PUT", True, "", "PutObject"),
    ("GET", True, "uploadId", "ListParts"),
    ("GET", True, "", "GetObject"),
    ("HEAD", True, "", "HeadObject"),
    ("DELETE", True, "uploadId", "AbortMultipartUpload"),
    ("DELETE", True, "", "DeleteObject"),
    ("POST", True, "uploads", "CreateMultipartUpload"),
    ("POST", True, "uploadId", "CompleteMultipartUpload"),
    ("GET", False, "location", "GetBucketLocation"),
    ("GET", False, "uploads", "ListMultipartUploads"),
    ("GET", False, "list-type", "ListObjectsV2"),
    ("POST", False, "delete", "DeleteObjects"),
    ("PUT", False, "", "CreateBucket"),
    ("HEAD", False, "", "HeadBucket"),
    ("DELETE", False, "", "DeleteBucket"),
)
OF_NO_OBJECT: Final = {"acl", "attributes", "legal-hold", "policy", "retention", "select", "tagging", "torrent", "versioning", "versions"}  # fmt: skip
"""Parameters that make another request of it, which the stand-in does not know."""


@dataclass
class Request:
    """One request without its body."""

    method: str
    bucket: str
    key: str
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case names. The trailers of the body are added once it is here."""
    is_last: bool = False
    """Whether the client will not use the connection again."""

    unlisted_s: float = 0.0
    """How long lists do not know what it writes; set by a fault."""

    @property
    def operation(self) -> str:
        """What S3 calls it, or `Unknown`."""
        if OF_NO_OBJECT & self.params.keys():
            return "Unknown"
        if not self.bucket:
            return "ListBuckets" if self.method == "GET" else "Unknown"
        about = (self.method, bool(self.key))
        for method, has_key, param, operation in ROUTES:
            if about == (method, has_key) and (not param or param in self.params):
                copies = operation == "PutObject" and "x-amz-copy-source" in self.headers
                return "CopyObject" if copies else operation
        return "Unknown"

    @property
    def wire_bytes(self) -> int | None:
        """How long the body is on the wire; None where it tells its length as it comes."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return None
        return int(self.headers.get("content-length", "0"))

    @property
    def is_aws_chunked(self) -> bool:
        """Whether the body is in chunks of Amazon's own kind."""
        return "aws-chunked" in self.headers.get("content-encoding", "") or self.headers.get(
            "x-amz-content-sha256", ""
        ).startswith("STREAMING-")

    @property
    def size_bytes(self) -> int | None:
        """How long the body is; None where the client does not say so beforehand."""
        decoded = self.headers.get("x-amz-decoded-content-length")
        return int(decoded) if decoded else self.wire_bytes


def read_request(source: Source) -> Request:
    """The next request.

    Raises:
        Gone: there is none, or it is no HTTP.
    """
    try:
        method, target, version = source.line().decode("latin-1").split(" ")
    except ValueError as error:
        raise Gone from error
    headers: dict[str, str] = {}
    while line := source.line():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    path, _, query = target.partition("?")
    bucket, _, key = unquote(path).removeprefix("/").partition("/")
    connection = headers.get("connection", "").lower()
    is_last = connection == "close" or (version == "HTTP/1.0" and connection != "keep-alive")
    params = dict(parse_qsl(query, keep_blank_values=True))
    return Request(method, bucket, key, params, headers, is_last)
