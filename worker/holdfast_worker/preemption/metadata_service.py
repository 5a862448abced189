"""The metadata service of a cloud, as a node sees it: plain HTTP at an address that leads no further than the host.

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

METADATA: Final = "http://169.254.169.254"
"""Where AWS, Azure and GCP answer. GCP has a name for it too, but a name must be looked up, and elsewhere that can take
long."""

TIMEOUT_S: Final = 1.0
"""For an answer, which comes from the same machine. Longer and it takes seconds to see that nobody is there, shorter
and a busy host is taken for none."""

NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past any proxy of the environment: it would ask its own host."""


class NoAnswer(Exception):
    """Nobody answered."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever it says."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    text: str

    @property
    def is_ok(self) -> bool:
        """Whether there is what was asked for."""
        return self.status == 200

    def json(self) -> Any:
        """The text as JSON.

        Raises:
            Silent: it is none, and so as good as no answer.
        """
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise NoAnswer(f"an answer that is no JSON: {self.text[:80]!r}") from error


@dataclass(frozen=True, slots=True)
class Metadata:
    """A metadata service at an address."""

    base: str = METADATA

    def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> Reply:
        """What it says.

        Raises:
            Silent: nothing.
        """
        request = urllib.request.Request(  # noqa: S310 - the address is a constant of ours
            self.base + path, headers=dict(headers), method=method
        )
        try:
            with NO_PROXY.open(request, timeout=TIMEOUT_S) as answer:
                return Reply(answer.status, _lower(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as answer:
            with answer:
                return Reply(answer.code, _lower(answer.headers), "")
        except (OSError, HTTPException, ValueError) as error:
            raise NoAnswer(str(error)) from error


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
