"""Checkpoint stores of the service: common behaviour, and the message of each for a failing store."""

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
from support.events import DAWN
from support.fakes import FixedClock
from support.memory_store import MemoryBucket, MemoryObjects
from worker.support.s3_servers import credentials, rclone

BUCKET = "bucket"
Put = Callable[[str, bytes], object]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def s3(service_keys: None, one_s3: FakeS3) -> FakeS3:
    """A server with nothing in it, and keys for it in the environment of the service."""
    one_s3.renew()
    return one_s3


def at_stand(s3: FakeS3, prefix: str = "/runs/deep") -> CheckpointBucket:
    """A depot there; where it is, the job's own variables say."""
    envs = {"AWS_ENDPOINT_URL_S3": s3.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    return CheckpointBuckets(SystemClock()).open(f"s3://{BUCKET}{prefix}", "job-1", envs)


def in_folder(folder: Path) -> CheckpointBucket:
    return CheckpointBuckets(SystemClock()).open(f"file://{folder}", "job-1", {})


def write(root: Path, key: str, data: bytes) -> None:
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    (root / key).write_bytes(data)


@pytest.fixture(params=["memory", "folder", "bucket", "bucket without a prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CheckpointBucket, Put]:
    """A depot, and how somebody else puts something into its store."""
    if request.param == "memory":
        bucket_objects = MemoryObjects(FixedClock())
        return MemoryBucket(bucket_objects), bucket_objects.put
    if request.param == "folder":
        root = tmp_path / "a store" / "job-1"
        return in_folder(tmp_path / "a%20store"), lambda key, data: write(root, key, data)
    s3: FakeS3 = request.getfixturevalue("s3")
    prefix = "" if "without" in request.param else "/runs/deep"
    full = f"{prefix}/job-1".removeprefix("/")
    s3.write(BUCKET, f"{full}0/commits/of-another-job", b"")
    put = lambda key, data: s3.write(BUCKET, f"{full}/{key}", data)  # noqa: E731
    return at_stand(s3, prefix), put


def keys(depot: CheckpointBucket, directory: str) -> list[str]:
    return sorted(stored.key for stored in depot.list_objects(directory).objects)


def test_a_store_in_which_nothing_is_yet(store: tuple[CheckpointBucket, Put]) -> None:
    depot, _ = store

    assert list(depot.list_directories("step-")) == []
    assert depot.list_objects("commits/").objects == ()
    assert not depot.has("commits/a")
    assert depot.read("commits/a") is None
    depot.delete(["commits/a"])


def test_objects_are_listed_with_size_and_time(
    store: tuple[CheckpointBucket, Put],
) -> None:
    depot, put = store
    put("step-1-e1-ab/rank-0/000000", b"12345")
    put("step-1-e1-ab/rank-0.json", b"1")
    put("step-1-e1-abc/rank-0.json", b"of another")
    put("commits/one.json", b"{}")

    look = depot.list_objects("step-1-e1-ab/")

    assert {stored.key: stored.size_bytes for stored in look.objects} == {
        "step-1-e1-ab/rank-0/000000": 5,
        "step-1-e1-ab/rank-0.json": 1,
    }
    assert all(
        look.listed_at - stored.written_at < timedelta(seconds=60) for stored in look.objects
    )
    assert look.listed_at.tzinfo is not None
    assert sorted(depot.list_directories("step-")) == ["step-1-e1-ab/", "step-1-e1-abc/"]
    assert depot.has("commits/one.json")
    assert depot.read("commits/one.json") == b"{}"


def test_multi_page_listing_and_deletion_are_complete(
    store: tuple[CheckpointBucket, Put],
) -> None:
    depot, put = store
    for number in range(1100):
        put(f"step-{number}-e1-ab/rank-0.json", b"x")
    for number in range(1100):
        put(f"step-9-e1-cd/rank-0/{number:06d}", b"x")

    directories = depot.list_directories("step-")
    parts = keys(depot, "step-9-e1-cd/")
    depot.delete([*parts, "step-9-e1-cd/never-there"])

    assert len(set(directories)) == 1101
    assert len(parts) == 1100
    assert keys(depot, "step-9-e1-cd/") == []
    assert len(set(depot.list_directories("step-"))) == 1100
    assert depot.has("step-9-e1-ab/rank-0.json")


# A bucket


def test_ages_are_by_the_clock_of_the_server(s3: FakeS3) -> None:
    s3.set(skew_s=86_400)
    s3.write(BUCKET, "runs/deep/job-1/commits/one", b"")

    look = at_stand(s3).list_objects("commits/")

    ahead = look.listed_at - SystemClock().now()
    assert timedelta(hours=23) < ahead < timedelta(hours=25)
    assert look.listed_at - look.objects[0].written_at < timedelta(seconds=60)


def test_a_server_that_asks_to_slow_down_is_asked_again(s3: FakeS3) -> None:
    s3.write(BUCKET, "runs/deep/job-1/commits/one", b"")
    s3.fault("error", code="SlowDown", on="ListObjectsV2", count=1)
    s3.fault("error", code="InternalError", on="DeleteObject", count=1)
    depot = at_stand(s3)

    depot.delete(keys(depot, "commits/"))

    assert s3.keys(BUCKET) == []


def test_a_removal_whose_answer_was_lost_is_one_all_the_same(s3: FakeS3) -> None:
    for number in range(20):
        s3.write(BUCKET, f"runs/deep/job-1/commits/{number}", b"")
    lost = s3.fault("lost", on="DeleteObject", skip=3, count=2)
    depot = at_stand(s3)

    depot.delete(keys(depot, "commits/"))

    assert s3.struck(lost) == 2
    assert s3.keys(BUCKET) == []


def test_a_page_that_breaks_off_is_no_list(s3: FakeS3) -> None:
    for number in range(30):
        s3.write(BUCKET, f"runs/deep/job-1/commits/{number}", b"")
    s3.set(page_keys=10)
    s3.fault("error", code="ServiceUnavailable", on="ListObjectsV2", skip=1)

    with pytest.raises(CheckpointStoreUnreachable, match="ServiceUnavailable"):
        at_stand(s3).list_objects("commits/")


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
    depot = at_stand(s3)
    deeds: list[Callable[[], object]] = [
        lambda: depot.list_objects("commits/"),
        lambda: depot.list_directories("step-"),
        lambda: depot.read("commits/a"),
        lambda: depot.delete(["commits/a"]),
    ]

    for deed in deeds:
        with pytest.raises(kind, match=code):
            deed()


def test_one_refused_deletion_of_many_is_raised(s3: FakeS3) -> None:
    for number in range(5):
        s3.write(BUCKET, f"runs/deep/job-1/commits/{number}", b"")
    s3.fault("error", code="AccessDenied", on="DeleteObject", key="*/3")
    depot = at_stand(s3)

    with pytest.raises(CheckpointStoreRefused, match="AccessDenied"):
        depot.delete(keys(depot, "commits/"))

    left = {key.rpartition("/")[2] for key in s3.keys(BUCKET)}
    assert {"3"} <= left <= {"3", "4"}, "what came before it is gone; what comes after it may be"


@pytest.mark.parametrize(
    ("envs", "kind", "words"),
    [
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, CheckpointStoreUnreachable, "127.0.0.1:9"),
        ({"AWS_ENDPOINT_URL_S3": "nonsense"}, CheckpointStoreRefused, "Invalid endpoint: nonsense"),
        ({"AWS_PROFILE": "nobody"}, CheckpointStoreRefused, "nobody"),
    ],
)
def test_unreachable_store_error_names_the_cause(
    s3: FakeS3, envs: dict[str, str], kind: type[Exception], words: str
) -> None:
    here = {"AWS_DEFAULT_REGION": "us-east-1", **envs}

    with pytest.raises(kind, match=words):
        CheckpointBuckets(SystemClock()).open("s3://bucket/runs", "job-1", here).list_objects(
            "commits/"
        )


def test_missing_credentials_are_reported(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with pytest.raises(CheckpointStoreRefused, match="credentials"):
        at_stand(s3).list_objects("commits/")


def test_credentials_of_a_job_are_used_for_its_store(
    tmp_path: Path, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    depots = CheckpointBuckets(SystemClock())
    with rclone(tmp_path / "s3") as endpoint:
        (tmp_path / "s3" / BUCKET / "job-1" / "commits").mkdir(parents=True)
        (tmp_path / "s3" / BUCKET / "job-1" / "commits" / "one").touch()
        good, bad = credentials(endpoint), {**credentials(endpoint), "AWS_ACCESS_KEY_ID": "other"}

        found = depots.open(f"s3://{BUCKET}", "job-1", good).list_objects("commits/")
        with pytest.raises(CheckpointStoreRefused):
            depots.open(f"s3://{BUCKET}", "job-1", bad).list_objects("commits/")

    assert [stored.key for stored in found.objects] == ["commits/one"]


def test_jobs_that_want_the_same_share_a_client(s3: FakeS3) -> None:
    depots = CheckpointBuckets(SystemClock())
    envs = {"AWS_ENDPOINT_URL_S3": s3.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    for number in range(3):
        depots.open("s3://bucket/runs", f"job-{number}", {**envs, "LR": f"{number}"}).list_objects(
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
    depot = in_folder(tmp_path)

    directories = depot.list_directories("step-")
    depot.delete(keys(depot, "step-2-e1-ab/"))

    assert list(directories) == ["step-2-e1-ab/"]
    assert (outside / "step-1-e1-ab" / "precious").exists()


def test_last_file_removes_only_its_own_directories(
    tmp_path: Path,
) -> None:
    root = tmp_path / "job-1"
    for key in ("step-1-e1-ab/rank-0/000000", "step-1-e1-ab/rank-0.json", "commits/a"):
        write(root, key, b"x")
    depot = in_folder(tmp_path)

    depot.delete(["commits/a", *keys(depot, "step-1-e1-ab/")])

    assert [path.name for path in root.iterdir()] == ["commits"]


def test_empty_directory_is_listed_and_deleted(tmp_path: Path) -> None:
    empty = tmp_path / "job-1" / "step-1-e1-ab"
    (empty / "rank-0").mkdir(parents=True)
    depot = in_folder(tmp_path)

    look = depot.list_objects("step-1-e1-ab/")
    depot.delete([stored.key for stored in look.objects])

    assert [stored.key for stored in look.objects] == ["step-1-e1-ab/"]
    assert not empty.exists()


def test_times_are_of_the_clock_that_dates_the_files(tmp_path: Path) -> None:
    """The service's own clock stands at another time; it is asked only as long as there is no folder."""
    depots = CheckpointBuckets(FixedClock())
    before = depots.open(f"file://{tmp_path}/none", "job-1", {}).list_objects("commits/")
    write(tmp_path / "job-1", "commits/a", b"")

    look = depots.open(f"file://{tmp_path}", "job-1", {}).list_objects("commits/")

    assert before.listed_at == DAWN
    assert abs(look.listed_at - look.objects[0].written_at) < timedelta(seconds=60)
    assert [path.name for path in (tmp_path / "job-1").iterdir()] == ["commits"]


def test_unusable_folder_error_names_the_cause(tmp_path: Path) -> None:
    (tmp_path / "job-1").touch()

    with pytest.raises(CheckpointStoreRefused, match="Not a directory"):
        in_folder(tmp_path).list_objects("commits/")
