"""Counted requests of background tasks: recorded when a store is opened again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from holdfast.background.store_requests import MeteredBuckets
from holdfast.errors import CheckpointStoreRefused
from holdfast.ports import CheckpointBucket
from holdfast.storage import DirectoryCheckpointBucket
from holdfast.store.journal import Journal
from holdfast.store.retention_queue import RetentionQueue
from holdfast_worker.protocol.policies import RetentionOwner
from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage
from sqlalchemy import Engine
from support.events import submitted
from support.fakes import FixedClock


@pytest.fixture(name="queue")
def _queue(engine: Engine) -> RetentionQueue:
    journal = Journal(engine, FixedClock())
    for job in ("job-1", "job-2"):
        journal.submit(job, submitted(), tidied_by=RetentionOwner.SERVICE)
    return RetentionQueue(engine)


class _Placed(DirectoryCheckpointBucket):
    asked = 0

    def place(self) -> str:
        self.asked += 1
        if self.asked > 1:
            raise CheckpointStoreRefused("asked twice")
        return "aws/eu-west-1"


def test_store_is_asked_once_where_it_is(tmp_path: Path, queue: RetentionQueue) -> None:
    bucket = _Placed(tmp_path, FixedClock(), None)
    buckets = MeteredBuckets(lambda *_: bucket, queue, FixedClock())

    for job in ("job-1", "job-1", "job-2"):
        buckets.open("s3://bucket/runs", job, {})

    assert bucket.asked == 1
    assert queue.place_of("s3://bucket/other") == "aws/eu-west-1"
    assert queue.place_of("s3://bucket2") == ""
    assert queue.requests("job-1") == StoreUsage(gets=1)


def test_own_server_of_a_job_says_nothing_about_a_bucket(
    tmp_path: Path, queue: RetentionQueue
) -> None:
    buckets = MeteredBuckets(lambda *_: _Placed(tmp_path, FixedClock(), None), queue, FixedClock())

    buckets.open("s3://bucket/runs", "job-1", {"AWS_ENDPOINT_URL_S3": "https://minio.example.com"})

    assert queue.place_of("s3://bucket/runs") == ""


def test_store_that_refuses_to_say_is_used_all_the_same(
    tmp_path: Path, queue: RetentionQueue
) -> None:
    bucket = _Placed(tmp_path, FixedClock(), None)
    bucket.asked = 1

    opened = MeteredBuckets(lambda *_: bucket, queue, FixedClock()).open(
        "s3://bucket/runs", "job-1", {}
    )

    assert opened.list_objects("data/").objects == ()
    assert queue.place_of("s3://bucket/runs") == ""


def test_requests_of_a_visit_are_recorded_at_the_next(
    tmp_path: Path, queue: RetentionQueue
) -> None:
    def open_bucket(store: str, job_id: str, envs: Mapping[str, str]) -> CheckpointBucket:
        del store, envs
        return DirectoryCheckpointBucket(tmp_path / job_id, FixedClock(), None)

    buckets = MeteredBuckets(open_bucket, queue, FixedClock())
    bucket = buckets.open("s3://b", "job-1", {})
    bucket.list_objects("data/")
    bucket.list_directories("data/")
    assert not bucket.has("a")
    assert bucket.read("a") is None
    bucket.delete(["a", "b"])
    assert queue.requests("job-1") == NO_USAGE

    buckets.open("s3://b", "job-2", {})
    buckets.open("s3://b", "job-1", {})

    assert queue.requests("job-1") == StoreUsage(lists=2, gets=2, deletes=2)
    assert queue.requests("job-2") == NO_USAGE
