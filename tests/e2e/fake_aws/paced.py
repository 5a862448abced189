"""Trains as train.py does, but slowly from a step on, until the test says that training may end. Runs beside train.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import boto3
import train
from botocore.exceptions import ClientError
from holdfast_worker import Run

SLOW_FROM = 101
SLOW_S = 6.0
"""Per step. What is left of 400 steps then takes longer than a test waits for anything, and votes still come in time."""
BUCKET, MAY_END = "checkpoints", "may-end"
"""The object that the test puts into its bucket."""

_steps = Run.steps


def may_end() -> bool:
    """Whether the test has requested it."""
    try:
        boto3.client("s3").head_object(Bucket=BUCKET, Key=MAY_END)
    except ClientError:
        return False
    return True


def paced(run: Run, loader: Iterable[Any], *, total: int | None = None) -> Iterator[Any]:
    """The batches of a run, in the pace of the test."""
    is_slow = True
    for batch in _steps(run, loader, total=total):
        yield batch
        is_slow = is_slow and not (run.step >= SLOW_FROM and may_end())
        if is_slow and run.step >= SLOW_FROM:
            time.sleep(SLOW_S)


if __name__ == "__main__":
    Run.steps = paced  # type: ignore[method-assign,assignment] - in this process alone
    train.main()
