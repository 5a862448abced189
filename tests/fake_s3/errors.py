"""Error responses of S3."""

from __future__ import annotations

from typing import Final

CODES: Final = {
    "AccessDenied": (403, "Access Denied"),
    "BadDigest": (400, "The digest you specified did not match what we received."),
    "ConditionalRequestConflict": (409, "A conflicting operation occurred during this request."),
    "EntityTooSmall": (400, "A part other than the last is smaller than the minimum size."),
    "ExpiredToken": (403, "The provided token has expired."),
    "IncompleteBody": (400, "The body has not the length that Content-Length says."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidArgument": (400, "An argument is not valid."),
    "InvalidPart": (400, "A part could not be found, or its ETag is another."),
    "InvalidPartOrder": (400, "The parts were not listed in ascending order."),
    "InvalidRange": (416, "The requested range is not satisfiable."),
    "MalformedXML": (400, "The XML you provided is not well-formed or lacks something."),
    "MissingContentLength": (411, "You must provide the Content-Length header."),
    "NoSuchBucket": (404, "The specified bucket does not exist."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchUpload": (404, "The specified multipart upload does not exist."),
    "NotImplemented": (501, "The operation is not implemented."),
    "PreconditionFailed": (412, "At least one of the preconditions you specified did not hold."),
    "RequestTimeTooSkewed": (403, "The request time and the server's are too far apart."),
    "RequestTimeout": (400, "Your socket was not read from or written to in time."),
    "ServiceUnavailable": (503, "Service is unable to handle request."),
    "SlowDown": (503, "Please reduce your request rate."),
    "Throttling": (429, "Rate exceeded."),
}
"""HTTP status and message of each code."""


class Refusal(Exception):
    """A request is refused with an error code of S3."""

    def __init__(self, code: str, message: str = "", *, status: int = 0) -> None:
        known_status, known_message = CODES.get(code, (400, code))
        self.code = code
        self.message = message or known_message
        self.status = status or known_status
        super().__init__(f"{code}: {self.message}")


class NotModified(Exception):
    """The client already has the requested object."""
