"""The doorstep of the service: what is said there over HTTP, and the answers. Standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final

from holdfast_worker.protocol.release import user_agent
from holdfast_worker.protocol.reports import (
    FENCED,
    MUSTER_PATH,
    NOT_MUSTERED,
    PROBLEMS,
    REPORTS_PATH,
    Registration,
    Report,
)

TIMEOUT_S: Final = 10.0
"""For one request to be answered."""
FINAL: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""Answers that another try will not change, if the service itself gives them."""


class ServiceUnreachable(Exception):
    """The service could not be reached, or asked to come back later."""


class ReportRejected(Exception):
    """The service will not take this, now or later."""


class UnknownIncarnation(Exception):
    """The service knows this incarnation no more, or not yet; it has to muster."""


class Superseded(Exception):
    """Another incarnation of the job took over from this one, or it is over; the message is the service's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service says to a delivery."""

    next: int
    """Number of the report that it wants next."""
    leave_within_s: float | None
    """Seconds in which the job is to save its work and leave; None while nobody wants it to."""


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """Where one job's reports are handed over. All of it may raise `Undelivered`, `Unwanted`, `Forgotten` and `Replaced`."""

    url: str
    job: str
    token: str
    incarnation: str | None = None
    """None: the launcher numbers the placements, so nobody musters."""

    def muster(self) -> Registration:
        """The number that the service gives to this incarnation."""
        assert self.incarnation, "only who has no number musters"
        reply = self._post(MUSTER_PATH, {"incarnation": self.incarnation})
        try:
            wanted = int(reply["next"])
            # A service of an older version does not say it, and has taken nothing that was posted.
            return Registration(int(reply["attempt"]), wanted, int(reply.get("before", wanted - 1)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"an answer that makes no sense: {error}") from error

    def deliver(self, attempt: int, reports: list[Report], oldest: int | None = None) -> Answer:
        """The answer to some reports of an attempt; an empty delivery asks for the number that is wanted.

        `oldest` is the number of the first report that is still here, if an older one is wanted. A service of an earlier version
        ignores it.
        """
        body: dict[str, Any] = {
            "attempt": attempt,
            "reports": [
                {"n": r.n, "at": r.at, "kind": r.kind, "body": dict(r.body)} for r in reports
            ],
        }
        if self.incarnation:
            body["incarnation"] = self.incarnation
        if oldest is not None:
            body["oldest"] = oldest
        reply = self._post(REPORTS_PATH, body)
        try:
            within_s = reply.get("leave_within_s")
            return Answer(int(reply["next"]), None if within_s is None else float(within_s))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServiceUnreachable(f"an answer that makes no sense: {error}") from error

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the address of the service is a setting
            self.url.rstrip("/") + path.format(job=self.job),
            data=json.dumps(body, separators=(",", ":")).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.token}",
                "User-Agent": user_agent("holdfast-worker"),
            },
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error) from error
        except (OSError, HTTPException, ValueError) as error:
            raise ServiceUnreachable(str(error)) from error


def _refusal(answer: urllib.error.HTTPError) -> Exception:
    """What an answer means that is no success."""
    said = f"{answer.code} {answer.reason}"
    try:
        problem = json.load(answer)
        _, ours, kind = problem["type"].rpartition(PROBLEMS)
        detail = str(problem.get("detail") or said)
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return ServiceUnreachable(said)  # No problem document.
    if ours and kind == FENCED:
        return Superseded(detail)
    if ours and kind == NOT_MUSTERED:
        return UnknownIncarnation(detail)
    return (
        ReportRejected(f"{said}: {detail}")
        if ours and answer.code in FINAL
        else ServiceUnreachable(said)
    )
