"""The contract of all stores, and their error messages."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import threading
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
from support.cloud_servers import CLOUD_SERVERS, CloudServer
from worker.support.s3_servers import BUCKET, credentials
from worker.support.stores import RankGroup, newest

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(params=["directory", "rclone", "moto", *CLOUD_SERVERS])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "directory":
        return open_store(f"file://{tmp_path}/a%20store", "job-1", os.environ)
    if request.param in CLOUD_SERVERS:
        server: CloudServer = request.getfixturevalue(request.param)
        return server.open(monkeypatch, f"{tmp_path.name}/deep", "job-1")
    endpoint = request.getfixturevalue(f"{request.param}_endpoint")
    for name, value in credentials(endpoint).items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}/{tmp_path.name}/deep", "job-1", os.environ)


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


def test_object_of_many_chunks_is_returned_whole(store: Store) -> None:
    """The commit of a model with ten thousand tensors is such an object.

    A directory store returned the last chunk forever, so that no checkpoint of such a model could be read.
    """
    data = random.Random(3).randbytes(3 * READ_CHUNK_BYTES + 1)

    store.put("commits/long.json", data)

    assert store.get("commits/long.json") == data
    assert b"".join(map(bytes, store.stream("commits/long.json"))) == data


def test_first_of_two_writes_is_kept_if_conditional(
    store: Store, request: pytest.FixtureRequest
) -> None:
    is_conditional = "rclone" not in request.node.name

    first, second = store.put_if_absent("x/commit", b"a"), store.put_if_absent("x/commit", b"b")

    assert (first, second) == (True, not is_conditional)
    assert store.get("x/commit") == (b"a" if is_conditional else b"b")


def test_swap_replaces_only_what_was_read(store: Store, request: pytest.FixtureRequest) -> None:
    store.put("newest.json", b"one")

    is_other = store.swap("newest.json", b"two", b"three")
    is_same = store.swap("newest.json", b"one", b"one")
    is_new = store.swap("newest.json", b"one", b"two")
    is_there = store.swap("absent.json", b"one", b"two")

    assert (is_other, is_same, is_new, is_there) == (False, True, True, False)
    assert store.get("newest.json") == b"two"
    with pytest.raises(ObjectNotFound):
        store.get("absent.json")


def test_object_is_read_into_given_views(store: Store) -> None:
    data = random.Random(4).randbytes(300_000)
    store.put("step-1/part", data)
    into = bytearray(250_000)

    read = [bytes(chunk) for chunk in store.stream("step-1/part", [memoryview(into)])]

    assert b"".join(read) == data
    assert into == data[:250_000]


def test_checkpoint_is_saved_and_restored_in_every_store(store: Store, tmp_path: Path) -> None:
    group = RankGroup(store, tmp_path / "spool", keep=2)

    for step in (10, 20, 30):
        group.save(step)

    assert newest(store) == (30, [])
    assert group.report_bodies(ReportKind.CHECKPOINT_FAILED) == []
    assert len(store.list("commits/")) == 2
    assert len(store.list("step-")) == 2 * 4


def test_waiting_for_a_store_leaves_the_random_state_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retries run in a thread beside the training.

    If they draw from the global generators, a run with a failing store ends with different weights.
    """
    with fake_s3.in_thread() as s3:
        for name, value in credentials(s3.endpoint).items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/x", "job", os.environ)
        s3.fault("error", code="InternalError", on="PutObject", count=2)
        before = random.getstate()

        is_new = retry_until(lambda: store.put_if_absent("commit", b"one"), float("inf"))

        assert is_new
        assert s3.counts().requests["PutObject"] == 3
        assert random.getstate() == before


def test_one_of_many_writers_of_a_file_wins(tmp_path: Path) -> None:
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
    """Stopped ranks of a lost placement held the lock, so that the next placement never started."""
    store = DirectoryStore(tmp_path, lock_s=0.1)
    (tmp_path / LOCK).touch()

    with (tmp_path / LOCK).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        is_swapped = store.swap("newest.json", None, b"mine")

    assert is_swapped
    assert store.get("newest.json") == b"mine"
    assert "was not released within" in capsys.readouterr().err


class Forking(DirectoryStore):
    """A store that forks a long-lived loader worker in the middle of each swap."""

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
    "url", ["/a/path", "file://host/path", "file:relative", "s3:///x", "gs:///x", "az:", "r2://b"]
)
def test_invalid_store_address_is_refused(url: str) -> None:
    with pytest.raises(StoreRefused, match="must be s3://bucket/prefix, gs://bucket/prefix, az://"):
        open_store(url, "job", os.environ)


@pytest.mark.parametrize(
    ("change", "bucket", "error", "message"),
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
    message: str,
) -> None:
    for name, value in {**credentials(rclone_endpoint), **change}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)

    with pytest.raises(error, match=message):
        open_store(f"s3://{bucket}/x", "job", os.environ).put("probe", b"x")


def test_unusable_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreRefused, match="Not a directory"):
        open_store(f"file://{tmp_path}/file", "job", os.environ).put("probe", b"x")
