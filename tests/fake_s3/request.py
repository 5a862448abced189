"""One received request: its bucket, key and operation of S3."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from fake_s3.wire import ConnectionClosed, Source

ROUTES: Final = (  # Method, whether it names an object, required parameter, operation. First match.
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
UNSUPPORTED: Final = {"acl", "attributes", "legal-hold", "policy", "retention", "select", "tagging", "torrent", "versioning", "versions"}  # fmt: skip
"""Parameters of operations on objects that the fake S3 does not support."""


@dataclass
class Request:
    """One request without its body."""

    method: str
    bucket: str
    key: str
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case name. Trailers are added after the body was received."""
    is_last: bool = False
    """Whether the client requests to close the connection."""
    dialect: str = ""
    """The protocol of another cloud (see `clouds`); empty for S3."""

    unlisted_s: float = 0.0
    """Time for which listings omit the written key; set by a fault."""

    @property
    def operation(self) -> str:
        """Name of the operation in S3, or `Unknown`."""
        if UNSUPPORTED & self.params.keys():
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
        """Size of the body on the wire; None for a chunked transfer."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return None
        return int(self.headers.get("content-length", "0"))

    @property
    def is_aws_chunked(self) -> bool:
        """Whether the body is in the aws-chunked encoding."""
        return "aws-chunked" in self.headers.get("content-encoding", "") or self.headers.get(
            "x-amz-content-sha256", ""
        ).startswith("STREAMING-")

    @property
    def size_bytes(self) -> int | None:
        """Size of the body; None if the client does not announce it."""
        decoded = self.headers.get("x-amz-decoded-content-length")
        return int(decoded) if decoded else self.wire_bytes


def read_request(source: Source) -> Request:
    """Read the next request.

    Raises:
        ConnectionClosed: The connection was closed, or sent something other than HTTP.
    """
    try:
        method, target, version = source.line().decode("latin-1").split(" ")
    except ValueError as error:
        raise ConnectionClosed from error
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
