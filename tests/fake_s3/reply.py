"""Replies of the fake S3: status, headers, views of the body, and the XML of S3."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from fake_s3.errors import Refusal
from fake_s3.memory import Blob

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass
class Reply:
    """One reply."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    views: list[memoryview] = field(default_factory=list)
    blob: Blob | None = None
    """Owner of the views' memory, which prevents its reuse while they are sent."""
    size_bytes: int | None = None
    """Value of Content-Length if it differs from the views, as for HEAD."""

    @property
    def body_bytes(self) -> int:
        """Size of the body."""
        return sum(len(view) for view in self.views)

    def head(self, *, date: str, request_id: str, is_last: bool) -> bytes:
        """Everything before the body."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Date: {date}", "Server: fake_s3", f"x-amz-request-id: {request_id}"]
        if self.status not in {204, 304}:
            size = self.body_bytes if self.size_bytes is None else self.size_bytes
            lines.append(f"Content-Length: {size}")
        if is_last:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def node(tag: str, *inside: ET.Element | str | int) -> ET.Element:
    """An XML element with text or child elements."""
    element = ET.Element(tag)
    for item in inside:
        if isinstance(item, ET.Element):
            element.append(item)
        else:
            element.text = str(item)
    return element


def xml(root: ET.Element, status: int = 200) -> Reply:
    """A reply with an XML document."""
    if root.tag != "Error":
        root.set("xmlns", NAMESPACE)
    text = ET.tostring(root, encoding="UTF-8", xml_declaration=True)
    return Reply(status, {"Content-Type": "application/xml"}, [memoryview(text)])


def error_reply(refusal: Refusal, key: str) -> Reply:
    """The error document of a refusal."""
    root = node("Error", node("Code", refusal.code), node("Message", refusal.message))
    root.append(node("Key", _printable(key)))
    return xml(root, refusal.status)


def parse_xml(body: bytes) -> ET.Element:
    """Parse the XML document of a client, without namespaces.

    Raises:
        Refusal: The body is not XML.
    """
    try:
        root = ET.fromstring(body)
    except ET.ParseError as error:
        raise Refusal("MalformedXML") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def child_text(root: ET.Element, tag: str) -> str:
    """The text of a required child element."""
    text = root.findtext(tag)
    if text is None:
        raise Refusal("MalformedXML", f"{tag} is missing.")
    return text


def number(text: str) -> int:
    """Parse a number in digits.

    Raises:
        Refusal: The text is not a number.
    """
    if not text.isdecimal():
        raise Refusal("InvalidArgument", f"{text!r} is no number.")
    return int(text)


def encode_key(key: str, encoding: str | None) -> str:
    """A key in the encoding that the client requested."""
    return quote(key, safe="/") if encoding == "url" else _printable(key)


def http_date(moment_s: int) -> str:
    """A time in the format of HTTP headers."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(moment_s))


def iso_date(moment_s: int) -> str:
    """A time in the format of S3's XML."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(moment_s))


def _printable(text: str) -> str:
    return "".join(character if character >= " " else "?" for character in text)
