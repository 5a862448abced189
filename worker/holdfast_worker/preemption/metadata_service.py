"""HTTP client of a cloud's metadata service, at a link-local address of the node.

Standard library only.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import Any, Final

METADATA_URL: Final = "http://169.254.169.254"
"""Address of AWS, Azure and GCP.
GCP also has a host name, whose lookup can take long on other clouds."""

TIMEOUT_S: Final = 1.0
"""Timeout of a request, which stays on the host.
A lower value fails on a busy host; a higher value delays the detection of a missing service."""

NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener that bypasses proxies, which would query the metadata of their own host."""


class NoAnswer(Exception):
    """The metadata service did not respond, or its response is malformed."""


@dataclass(frozen=True, slots=True)
class MetadataReply:
    """A response of any status."""

    status: int
    headers: Mapping[str, str]
    """Headers by name in lower case."""
    text: str

    @property
    def is_ok(self) -> bool:
        """Whether the status is 200."""
        return self.status == 200

    def json(self) -> Any:
        """Parse the text as JSON.

        Raises:
            NoAnswer: the text is not JSON.
        """
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise NoAnswer(f"the response is not JSON: {self.text[:80]!r}") from error


@dataclass(frozen=True, slots=True)
class MetadataService:
    """A metadata service at an address."""

    base: str = METADATA_URL

    def request(self, path: str, headers: Mapping[str, str], method: str = "GET") -> MetadataReply:
        """Send a request and return the response.

        Raises:
            NoAnswer: there is no response.
        """
        request = urllib.request.Request(  # noqa: S310 - the address is a constant
            self.base + path, headers=dict(headers), method=method
        )
        try:
            with NO_PROXY.open(request, timeout=TIMEOUT_S) as response:
                return MetadataReply(
                    response.status, _lower_headers(response.headers), response.read().decode()
                )
        except urllib.error.HTTPError as response:
            with response:
                return MetadataReply(response.code, _lower_headers(response.headers), "")
        except (OSError, HTTPException, ValueError) as error:
            raise NoAnswer(str(error)) from error


def _lower_headers(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
