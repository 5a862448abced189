"""Checkpoint stores of the service: common behavior, and the error message of each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from fake_s3 import FakeS3
from holdfast.clock import SystemClock
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.ports import CheckpointBucket
from holdfast.storage import CheckpointBuckets
from holdfast_worker.storage.cloud import open_cloud_store
from support.cloud_servers import FAKE_CLOUDS, CloudServer
from support.events import DAWN
from support.fakes import FixedClock
from support.memory_store import MemoryBucket, MemoryObjects
from worker.support.s3_servers import credentials, rclone

BUCKET = "bucket"
Put = Callable[[str, bytes], object]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def s3(service_keys: None, one_s3: FakeS3) -> FakeS3:
    """An empty server, with its credentials in the environment of the service."""
    one_s3.renew()
    return one_s3


def s3_bucket(s3: FakeS3, prefix: str = "/runs/deep") -> CheckpointBucket:
    """A checkpoint store on the server, located by the variables of its job."""
    envs = {"AWS_ENDPOINT_URL_S3": s3.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    return CheckpointBuckets(SystemClock()).open(f"s3://{BUCKET}{prefix}", "job-1", envs)


def cloud_bucket(server: CloudServer, prefix: str = "/runs/deep") -> CheckpointBucket:
    """A checkpoint store at another cloud, located by the variables of its job."""
    store = f"{server.scheme}://{BUCKET}{prefix}"
    return CheckpointBuckets(SystemClock()).open(store, "job-1", server.variables)


def directory_bucket(folder: Path) -> CheckpointBucket:
    return CheckpointBuckets(SystemClock()).open(f"file://{folder}", "job-1", {})


def write(root: Path, key: str, data: bytes) -> None:
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    (root / key).write_bytes(data)


@pytest.fixture(
    params=[
        "memory",
        "folder",
        "bucket",
        pytest.param("bucket without a prefix", marks=pytest.mark.full),
        "gs",
        "az",
        pytest.param("az without a prefix", marks=pytest.mark.full),
        pytest.param("azurite", marks=pytest.mark.full),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CheckpointBucket, Put]:
    """A checkpoint store, and a function that writes to its storage from outside."""
    if request.param == "memory":
        bucket_objects = MemoryObjects(FixedClock())
        return MemoryBucket(bucket_objects), bucket_objects.put
    if request.param == "folder":
        root = tmp_path / "a store" / "job-1"
        return directory_bucket(tmp_path / "a%20store"), lambda key, data: write(root, key, data)
    if request.param == "azurite":
        azurite: CloudServer = request.getfixturevalue("azurite")
        own = open_cloud_store(f"az://{BUCKET}/{tmp_path.name}", "job-1", azurite.variables)
        return cloud_bucket(azurite, f"/{tmp_path.name}"), own.put
    s3: FakeS3 = request.getfixturevalue("s3")
    prefix = "" if "without" in request.param else "/runs/deep"
    full = f"{prefix}/job-1".removeprefix("/")
    s3.write(BUCKET, f"{full}0/commits/of-another-job", b"")
    put = lambda key, data: s3.write(BUCKET, f"{full}/{key}", data)  # noqa: E731
    if cloud := FAKE_CLOUDS.get(request.param[:2]):
        return cloud_bucket(cloud(s3), prefix), put
    return s3_bucket(s3, prefix), put


def keys(bucket: CheckpointBucket, directory: str) -> list[str]:
    return sorted(stored.key for stored in bucket.list_objects(directory).objects)


def test_new_store_lists_nothing(store: tuple[CheckpointBucket, Put]) -> None:
    bucket, _ = store

    assert list(bucket.list_directories("step-")) == []
    assert bucket.list_objects("commits/").objects == ()
    assert not bucket.has("commits/a")
    assert bucket.read("commits/a") is None
    bucket.delete(["commits/a"])


def test_objects_are_listed_with_size_and_time(
    store: tuple[CheckpointBucket, Put],
) -> None:
    bucket, put = store
    put("step-1-e1-ab/rank-0/000000", b"12345")
    put("step-1-e1-ab/rank-0.json", b"1")
    put("step-1-e1-abc/rank-0.json", b"of another")
    put("commits/one.json", b"{}")

    look = bucket.list_objects("step-1-e1-ab/")

    assert {stored.key: stored.size_bytes for stored in look.objects} == {
        "step-1-e1-ab/rank-0/000000": 5,
        "step-1-e1-ab/rank-0.json": 1,
    }
    assert all(
        look.listed_at - stored.written_at < timedelta(seconds=60) for stored in look.objects
    )
    assert look.listed_at.tzinfo is not None
    assert sorted(bucket.list_directories("step-")) == ["step-1-e1-ab/", "step-1-e1-abc/"]
    assert bucket.has("commits/one.json")
    assert bucket.read("commits/one.json") == b"{}"


def test_multi_page_listing_and_deletion_are_complete(
    store: tuple[CheckpointBucket, Put],
) -> None:
    bucket, put = store
    for number in range(1100):
        put(f"step-{number}-e1-ab/rank-0.json", b"x")
    for number in range(1100):
        put(f"step-9-e1-cd/rank-0/{number:06d}", b"x")

    directories = bucket.list_directories("step-")
    parts = keys(bucket, "step-9-e1-cd/")
    bucket.delete([*parts, "step-9-e1-cd/never-there"])

    assert len(set(directories)) == 1101
    assert len(parts) == 1100
    assert keys(bucket, "step-9-e1-cd/") == []
    assert len(set(bucket.list_directories("step-"))) == 1100
    assert bucket.has("step-9-e1-ab/rank-0.json")


# A bucket


def test_ages_use_the_clock_of_the_server(s3: FakeS3) -> None:
    s3.set(skew_s=86_400)
    s3.write(BUCKET, "runs/deep/job-1/commits/one", b"")

    look = s3_bucket(s3).list_objects("commits/")

    ahead = look.listed_at - SystemClock().now()
    assert timedelta(hours=23) < ahead < timedelta(hours=25)
    assert look.listed_at - look.objects[0].written_at < timedelta(seconds=60)


def test_slow_down_response_is_retried(s3: FakeS3) -> None:
    s3.write(BUCKET, "runs/deep/job-1/commits/one", b"")
    s3.fault("error", code="SlowDown", on="ListObjectsV2", count=1)
    s3.fault("error", code="InternalError", on="DeleteObject", count=1)
    bucket = s3_bucket(s3)

    bucket.delete(keys(bucket, "commits/"))

    assert s3.keys(BUCKET) == []


def test_deletion_with_a_lost_response_succeeds(s3: FakeS3) -> None:
    for number in range(20):
        s3.write(BUCKET, f"runs/deep/job-1/commits/{number}", b"")
    lost = s3.fault("lost", on="DeleteObject", skip=3, count=2)
    bucket = s3_bucket(s3)

    bucket.delete(keys(bucket, "commits/"))

    assert s3.triggered(lost) == 2
    assert s3.keys(BUCKET) == []


def test_truncated_listing_page_is_an_error(s3: FakeS3) -> None:
    for number in range(30):
        s3.write(BUCKET, f"runs/deep/job-1/commits/{number}", b"")
    s3.set(page_keys=10)
    s3.fault("error", code="ServiceUnavailable", on="ListObjectsV2", skip=1)

    with pytest.raises(CheckpointStoreUnreachable, match="ServiceUnavailable"):
        s3_bucket(s3).list_objects("commits/")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", CheckpointStoreRefused),
        ("NoSuchBucket", CheckpointStoreRefused),
        ("ExpiredToken", CheckpointStoreUnreachable),
        ("RequestTimeTooSkewed", CheckpointStoreUnreachable),
    ],
)
def test_refused_access_raises_the_servers_error_code(
    s3: FakeS3, code: str, kind: type[Exception]
) -> None:
    s3.fault("error", code=code)
    bucket = s3_bucket(s3)
    actions: list[Callable[[], object]] = [
        lambda: bucket.list_objects("commits/"),
        lambda: bucket.list_directories("step-"),
        lambda: bucket.read("commits/a"),
        lambda: bucket.delete(["commits/a"]),
    ]

    for action in actions:
        with pytest.raises(kind, match=code):
            action()


def test_one_refused_deletion_of_many_is_raised(s3: FakeS3) -> None:
    for number in range(5):
        s3.write(BUCKET, f"runs/deep/job-1/commits/{number}", b"")
    s3.fault("error", code="AccessDenied", on="DeleteObject", key="*/3")
    bucket = s3_bucket(s3)

    with pytest.raises(CheckpointStoreRefused, match="AccessDenied"):
        bucket.delete(keys(bucket, "commits/"))

    left = {key.rpartition("/")[2] for key in s3.keys(BUCKET)}
    assert {"3"} <= left <= {"3", "4"}, "what came before it is gone; what comes after it may be"


@pytest.mark.parametrize(
    ("envs", "kind", "message"),
    [
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, CheckpointStoreUnreachable, "127.0.0.1:9"),
        ({"AWS_ENDPOINT_URL_S3": "nonsense"}, CheckpointStoreRefused, "Invalid endpoint: nonsense"),
        ({"AWS_PROFILE": "nobody"}, CheckpointStoreRefused, "nobody"),
    ],
)
def test_unreachable_store_error_names_the_cause(
    s3: FakeS3, envs: dict[str, str], kind: type[Exception], message: str
) -> None:
    here = {"AWS_DEFAULT_REGION": "us-east-1", **envs}

    with pytest.raises(kind, match=message):
        CheckpointBuckets(SystemClock()).open("s3://bucket/runs", "job-1", here).list_objects(
            "commits/"
        )


def test_missing_credentials_are_reported(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with pytest.raises(CheckpointStoreRefused, match="credentials"):
        s3_bucket(s3).list_objects("commits/")


def test_credentials_of_a_job_are_used_for_its_store(
    tmp_path: Path, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    buckets = CheckpointBuckets(SystemClock())
    with rclone(tmp_path / "s3") as endpoint:
        (tmp_path / "s3" / BUCKET / "job-1" / "commits").mkdir(parents=True)
        (tmp_path / "s3" / BUCKET / "job-1" / "commits" / "one").touch()
        good, bad = credentials(endpoint), {**credentials(endpoint), "AWS_ACCESS_KEY_ID": "other"}

        found = buckets.open(f"s3://{BUCKET}", "job-1", good).list_objects("commits/")
        with pytest.raises(CheckpointStoreRefused):
            buckets.open(f"s3://{BUCKET}", "job-1", bad).list_objects("commits/")

    assert [stored.key for stored in found.objects] == ["commits/one"]


def test_jobs_with_equal_settings_share_a_client(s3: FakeS3) -> None:
    buckets = CheckpointBuckets(SystemClock())
    envs = {"AWS_ENDPOINT_URL_S3": s3.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    for number in range(3):
        buckets.open("s3://bucket/runs", f"job-{number}", {**envs, "LR": f"{number}"}).list_objects(
            "commits/"
        )

    assert s3.counts().connections == 1


# A folder


def test_symbolic_links_are_neither_listed_nor_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "job-1"
    write(outside, "step-1-e1-ab/precious", b"x")
    write(root, "step-2-e1-ab/rank-0.json", b"x")
    (root / "step-1-e1-ab").symlink_to(outside / "step-1-e1-ab")
    (root / "step-2-e1-ab" / "rank-0").symlink_to(outside / "step-1-e1-ab")
    bucket = directory_bucket(tmp_path)

    directories = bucket.list_directories("step-")
    bucket.delete(keys(bucket, "step-2-e1-ab/"))

    assert list(directories) == ["step-2-e1-ab/"]
    assert (outside / "step-1-e1-ab" / "precious").exists()


def test_last_file_removes_only_its_own_directories(
    tmp_path: Path,
) -> None:
    root = tmp_path / "job-1"
    for key in ("step-1-e1-ab/rank-0/000000", "step-1-e1-ab/rank-0.json", "commits/a"):
        write(root, key, b"x")
    bucket = directory_bucket(tmp_path)

    bucket.delete(["commits/a", *keys(bucket, "step-1-e1-ab/")])

    assert [path.name for path in root.iterdir()] == ["commits"]


def test_empty_directory_is_listed_and_deleted(tmp_path: Path) -> None:
    empty = tmp_path / "job-1" / "step-1-e1-ab"
    (empty / "rank-0").mkdir(parents=True)
    bucket = directory_bucket(tmp_path)

    look = bucket.list_objects("step-1-e1-ab/")
    bucket.delete([stored.key for stored in look.objects])

    assert [stored.key for stored in look.objects] == ["step-1-e1-ab/"]
    assert not empty.exists()


def test_times_use_the_clock_of_the_file_system(tmp_path: Path) -> None:
    """The service's own clock shows a different time; it is read only while no folder exists."""
    buckets = CheckpointBuckets(FixedClock())
    before = buckets.open(f"file://{tmp_path}/none", "job-1", {}).list_objects("commits/")
    write(tmp_path / "job-1", "commits/a", b"")

    look = buckets.open(f"file://{tmp_path}", "job-1", {}).list_objects("commits/")

    assert before.listed_at == DAWN
    assert abs(look.listed_at - look.objects[0].written_at) < timedelta(seconds=60)
    assert [path.name for path in (tmp_path / "job-1").iterdir()] == ["commits"]


def test_unusable_folder_error_names_the_cause(tmp_path: Path) -> None:
    (tmp_path / "job-1").touch()

    with pytest.raises(CheckpointStoreRefused, match="Not a directory"):
        directory_bucket(tmp_path).list_objects("commits/")
