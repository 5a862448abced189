"""The doorstep of the service: what is said there over HTTP, and the answers. Standard library only."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final

from holdfast_worker.wire import FENCED, MUSTER_PATH, REPORTS_PATH, Muster, Mustered, Report

TIMEOUT_S: Final = 10.0
"""For one request to be answered."""
FINAL_ANSWERS: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""Answers that another try will not change."""


class Undelivered(Exception):
    """The service could not be reached, or asked to come back later."""


class Unwanted(Exception):
    """The service will not take this, now or later."""


class Replaced(Exception):
    """Another incarnation of the job took over from this one, or it is over; the message is the service's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service says to a delivery."""

    next: int
    """Number of the report that it wants next."""
    leave: bool
    """Whether somebody asks the job to save its work and leave."""


@dataclass(frozen=True, slots=True)
class Doorstep:
    """Where one job's reports are handed over. All of it may raise `Undelivered`, `Unwanted` and `Replaced`."""

    url: str
    job: str
    token: str
    incarnation: str | None = None
    """None: the launcher numbers the placements, so nobody musters."""

    def muster(self, nodes: int) -> Mustered:
        """The number that the service gives to this incarnation of so many nodes."""
        assert self.incarnation, "only who has no number musters"
        reply = self._post(MUSTER_PATH, asdict(Muster(self.incarnation, nodes)))
        try:
            return Mustered(int(reply["attempt"]), int(reply["next"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Undelivered(f"an answer that makes no sense: {error}") from error

    def deliver(self, attempt: int, reports: list[Report]) -> Answer:
        """The answer to some reports of an attempt; an empty delivery asks for the number that is wanted."""
        body: dict[str, Any] = {
            "attempt": attempt,
            "reports": [
                {"n": r.n, "at": r.at, "kind": r.kind, "body": dict(r.body)} for r in reports
            ],
        }
        if self.incarnation:
            body["incarnation"] = self.incarnation
        reply = self._post(REPORTS_PATH, body)
        try:
            return Answer(int(reply["next"]), reply.get("leave") is True)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Undelivered(f"an answer that makes no sense: {error}") from error

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the address of the service is a setting
            self.url.rstrip("/") + path.format(job=self.job),
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error) from error
        except (OSError, HTTPException, ValueError) as error:
            raise Undelivered(str(error)) from error


def _refusal(answer: urllib.error.HTTPError) -> Exception:
    """What an answer means that is no success."""
    said = f"{answer.code} {answer.reason}"
    if answer.code in FINAL_ANSWERS:
        return Unwanted(said)
    if answer.code != HTTPStatus.CONFLICT:
        return Undelivered(said)
    try:
        problem = json.load(answer)
        if re.split(r"[/#]", problem["type"])[-1] == FENCED:
            return Replaced(str(problem.get("detail") or problem.get("title") or said))
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        pass  # No problem document.
    return Undelivered(said)
