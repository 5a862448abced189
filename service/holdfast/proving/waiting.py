"""A job, watched until it has come somewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from holdfast.api.schemas import JobOut
from holdfast.client import Client
from holdfast.errors import Unavailable

PATIENCE_S: Final = 300.0
"""How long one thing is waited for. Smaller fails on a busy laptop; bigger hides a job that hangs."""
_POLL_S: Final = 0.2
ENDS: Final = frozenset({"succeeded", "failed", "cancelled"})

Tell = Callable[[JobOut, str], None]
"""Shows where the story is: the job now, and what just happened or an empty text."""


def until(client: Client, job_id: str, tell: Tell, reached: Callable[[JobOut], bool]) -> JobOut:
    """The job once `reached` is true of it.

    Raises:
        Unavailable: it ended before that, or does not get on.
    """
    deadline = time.monotonic() + PATIENCE_S
    state = ""
    while True:
        job = client.job(job_id)
        tell(
            job,
            f"{job.state}{f': {job.detail}' if job.detail else ''}" if job.state != state else "",
        )
        state = job.state
        if reached(job):
            return job
        if state in ENDS:
            raise Unavailable(f"job {job_id} {state} before its time: {job.detail}")
        if time.monotonic() > deadline:
            raise Unavailable(
                f"job {job_id} does not get on: {state} at step {job.step}, {job.detail}"
            )
        time.sleep(_POLL_S)
