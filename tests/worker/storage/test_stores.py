"""Stores of all kinds keep the same promises, and say no in words."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import fake_s3
import pytest
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import (
    Bytes,
    ObjectNotFound,
    Store,
    StoreRefused,
    StoreUnreachable,
)
from holdfast_worker.storage.directory import LOCK, READ_CHUNK_BYTES, DirectoryStore
from holdfast_worker.storage.retry import retry_until
from worker.support.s3_servers import BUCKET, credentials, moto, rclone
from worker.support.stores import RankGroup, newest

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="module")
def rclone_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rclone(tmp_path_factory.mktemp("rclone")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def moto_endpoint() -> Iterator[str]:
    with moto() as (endpoint, _):
        yield endpoint


@pytest.fixture(params=["directory", "rclone", "moto"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "directory":
        return open_store(f"file://{tmp_path}/a%20store", "job-1")
    endpoint = request.getfixturevalue(f"{request.param}_endpoint")
    for name, value in credentials(endpoint).items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}/{tmp_path.name}/deep", "job-1")


def test_object_is_stored_listed_and_deleted(store: Store) -> None:
    store.put("a/one.json", b"1")
    store.put("a/two.json", b"22")
    store.put("ab/three.json", b"")
    store.put("a/one.json", b"one")

    assert store.get("a/one.json") == b"one"
    assert store.get("ab/three.json") == b""
    assert sorted(store.list("a/")) == ["a/one.json", "a/two.json"]
    assert sorted(store.list("a")) == ["a/one.json", "a/two.json", "ab/three.json"]
    assert store.list("nothing/") == []
    store.delete("a/one.json")
    store.delete("a/one.json")
    assert store.list("a/") == ["a/two.json"]
    with pytest.raises(ObjectNotFound):
        store.get("a/one.json")


def test_an_object_of_many_stretches_comes_back_whole(store: Store) -> None:
    """The commit of a model of ten thousand tensors is one. A directory gave its last stretch again and again, so that no
    checkpoint of such a model could be read."""
    data = random.Random(3).randbytes(3 * READ_CHUNK_BYTES + 1)

    store.put("commits/long.json", data)

    assert store.get("commits/long.json") == data
    assert b"".join(map(bytes, store.stream("commits/long.json"))) == data


def test_the_first_of_two_is_kept_where_the_store_can_tell(
    store: Store, request: pytest.FixtureRequest
) -> None:
    can_tell = "rclone" not in request.node.name

    first, second = store.put_if_absent("x/commit", b"a"), store.put_if_absent("x/commit", b"b")

    assert (first, second) == (True, not can_tell)
    assert store.get("x/commit") == (b"a" if can_tell else b"b")


def test_checkpoints_live_in_every_store(store: Store, tmp_path: Path) -> None:
    group = RankGroup(store, tmp_path / "spool", keep=2)

    for step in (10, 20, 30):
        group.save(step)

    assert newest(store) == (30, [])
    assert group.said(ReportKind.CHECKPOINT_FAILED) == []
    assert len(store.list("commits/")) == 2
    assert len(store.list("step-")) == 2 * 4


def test_waiting_for_a_store_leaves_the_random_state_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uploads wait in a thread beside the training. What it drew there was missing from the augmentation of the data, so
    that a run with a bad minute of its store, or a resumed one, ended with other weights."""
    with fake_s3.in_thread() as s3:
        for name, value in credentials(s3.endpoint).items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/x", "job")
        s3.fault("error", code="InternalError", on="PutObject", count=2)
        before = random.getstate()

        is_new = retry_until(lambda: store.put_if_absent("commit", b"one"), float("inf"))

        assert is_new
        assert s3.counts().requests["PutObject"] == 3
        assert random.getstate() == before


def test_of_many_writers_of_a_file_one_wins(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    won: list[int] = []

    def write(writer: int) -> None:
        if store.put_if_absent("commit", b"%d" % writer):
            won.append(writer)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert len(won) == 1
    assert store.get("commit") == b"%d" % won[0]
    assert [file.name for file in tmp_path.iterdir()] == ["commit"]


def test_swap_lock_held_by_a_stopped_process_times_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranks of a placement that was thought lost were stopped there, and those of the next one waited for the lock that
    they held: a job that had been placed again did not begin."""
    store = DirectoryStore(tmp_path, lock_s=0.1)
    (tmp_path / LOCK).touch()

    with (tmp_path / LOCK).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        is_swapped = store.swap("newest.json", None, b"mine")

    assert is_swapped
    assert store.get("newest.json") == b"mine"
    assert "was not released within" in capsys.readouterr().err


class Forking(DirectoryStore):
    """A loader forks a worker, which lives on, in the middle of each swap."""

    def __init__(self, root: Path, lock_s: float) -> None:
        super().__init__(root, lock_s)
        self.workers: list[int] = []

    def put(self, key: str, data: Bytes) -> None:
        worker = os.fork()
        if not worker:
            signal.pause()
        self.workers.append(worker)
        super().put(key, data)


def test_forked_loader_worker_does_not_keep_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Forking(tmp_path, lock_s=0.1)

    try:
        first = store.swap("newest.json", None, b"one")
        second = store.swap("newest.json", b"one", b"two")
    finally:
        for worker in store.workers:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)

    assert (first, second) == (True, True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "url", ["/a/path", "file://host/path", "file:relative", "s3:///x", "gs://b"]
)
def test_an_address_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreRefused, match="must be s3://bucket/prefix or file:///path"):
        open_store(url, "job")


@pytest.mark.parametrize(
    ("change", "bucket", "error", "words"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, BUCKET, StoreRefused, "SignatureDoesNotMatch"),
        ({}, "no-such-bucket", StoreRefused, "NoSuchBucket"),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            BUCKET,
            StoreUnreachable,
            "error sending request",
        ),
        ({"AWS_ENDPOINT_URL": "nonsense"}, BUCKET, StoreRefused, "Invalid endpoint"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            BUCKET,
            StoreRefused,
            "credentials",
        ),
    ],
)
def test_unusable_bucket_is_refused_with_the_reason(
    rclone_endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    bucket: str,
    error: type[Exception],
    words: str,
) -> None:
    for name, value in {**credentials(rclone_endpoint), **change}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)

    with pytest.raises(error, match=words):
        open_store(f"s3://{bucket}/x", "job").put("probe", b"x")


def test_unusable_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreRefused, match="Not a directory"):
        open_store(f"file://{tmp_path}/file", "job").put("probe", b"x")
