"""Trains like train.py, but slowly from some step on, until the test lets it end."""

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
"""Seconds per step: the remaining steps exceed any wait of a test, and votes arrive in time."""
BUCKET, MAY_END = "checkpoints", "may-end"
"""The object that the test writes to its bucket."""

_steps = Run.steps


def may_end() -> bool:
    """Whether the test has requested the end."""
    try:
        boto3.client("s3").head_object(Bucket=BUCKET, Key=MAY_END)
    except ClientError:
        return False
    return True


def paced(run: Run, loader: Iterable[Any], *, total: int | None = None) -> Iterator[Any]:
    """The batches of a run, at the pace of the test."""
    is_slow = True
    for batch in _steps(run, loader, total=total):
        yield batch
        is_slow = is_slow and not (run.step >= SLOW_FROM and may_end())
        if is_slow and run.step >= SLOW_FROM:
            time.sleep(SLOW_S)


if __name__ == "__main__":
    Run.steps = paced  # type: ignore[method-assign,assignment] - only in this process
    train.main()
