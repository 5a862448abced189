"""The courier: brings spooled reports to the service, in order, as often as it takes. Standard library only.

It lives outside of the training loop's way: losing the service costs nothing but the delay of the reports.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from holdfast_worker.console import tell
from holdfast_worker.spool import read_spool, spool_file, spooled_attempts
from holdfast_worker.wire import Report

BATCH: Final = 200
"""Reports in one delivery. More makes a retry dear, fewer makes a long spool slow."""
LOOK_S: Final = 0.5
"""How often the spool is looked at. Longer delays the dashboard, shorter wakes an idle machine."""
LONGEST_WAIT_S: Final = 10.0
"""Between two tries. Longer delays the catching up after an outage, shorter hammers a service that is down."""
TIMEOUT_S: Final = 10.0
"""For one delivery to be answered."""
LAST_TRY_S: Final = 5.0
"""After the ranks have left. Longer holds a node that may be paid for, shorter leaves more in the spool."""
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
    """The service will not take these reports, now or later."""


@dataclass(frozen=True, slots=True)
class Doorstep:
    """Where one job's reports are handed over."""

    url: str
    job: str
    token: str

    def deliver(self, attempt: int, reports: list[Report]) -> int:
        """The number of the report that the service expects next; an empty delivery asks for it.

        Raises:
            Undelivered: no answer, or not now.
            Unwanted: the answer is no.
        """
        body = {
            "attempt": attempt,
            "reports": [
                {"n": r.n, "at": r.at, "kind": r.kind, "body": dict(r.body)} for r in reports
            ],
        }
        request = urllib.request.Request(  # noqa: S310 - the address of the service is a setting
            f"{self.url.rstrip('/')}/v1/jobs/{self.job}/reports",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
                return int(json.load(reply)["next"])
        except urllib.error.HTTPError as error:
            with error:
                if error.code in FINAL_ANSWERS:
                    raise Unwanted(f"{error.code} {error.reason}") from error
                raise Undelivered(f"{error.code} {error.reason}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Undelivered(str(error)) from error


class Courier:
    """A thread that delivers the spools of a job: those of older attempts first, then the current one as it grows."""

    def __init__(self, doorstep: Doorstep, directory: Path, attempt: int) -> None:
        self._doorstep = doorstep
        self._directory = directory
        self._attempt = attempt
        self._closing = threading.Event()
        self._last_try_s = float("inf")
        self._thread = threading.Thread(target=self._run, name="holdfast-courier", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def close(self, within_s: float = LAST_TRY_S) -> None:
        """Deliver what is there now, within that time; the rest stays in the spool."""
        self._last_try_s = time.monotonic() + within_s
        self._closing.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        older = [a for a in spooled_attempts(self._directory) if a < self._attempt]
        for attempt in [*older, self._attempt]:
            try:
                self._deliver_file(attempt)
            except Unwanted as answer:
                tell(f"the service refused the reports of attempt {attempt}: {answer}")
            except ValueError as damage:
                tell(f"the spool of attempt {attempt} cannot be read: {damage}")

    def _deliver_file(self, attempt: int) -> None:
        """Return when all is delivered and nothing more can come, or the time is up."""
        file = spool_file(self._directory, attempt)
        following = self._deliver_patiently(attempt, [])
        start = 0
        while following is not None:
            # Asked before the look: what was written until then is seen by it.
            is_complete = attempt != self._attempt or self._closing.is_set()
            waiting = ((r, end) for r, end in read_spool(file, start) if r.n >= following)
            batch = list(itertools.islice(waiting, BATCH))
            if not batch and is_complete:
                return
            if not batch:
                self._closing.wait(LOOK_S)
                continue
            expected = batch[-1][0].n + 1
            following = self._deliver_patiently(attempt, [report for report, _ in batch])
            # A service that lost some asks for them again, from the beginning of the file.
            start = batch[-1][1] if following == expected else 0

    def _deliver_patiently(self, attempt: int, reports: list[Report]) -> int | None:
        """The number that is expected next; None when the time is up."""
        for tries in itertools.count():
            try:
                return self._doorstep.deliver(attempt, reports)
            except Undelivered:
                wait_s = random.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, 0.25 * 2 ** min(tries, 10))
            if self._closing.is_set():
                # The last tries are close to each other: there may be only seconds left.
                time.sleep(min(wait_s, 0.5))
            else:
                self._closing.wait(wait_s)
            if time.monotonic() > self._last_try_s:
                return None
        raise AssertionError("unreachable")
