"""Stores of users' jobs: the endpoints that the service contacts, and with which keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fake_s3 import FakeS3
from holdfast.clock import SystemClock
from holdfast.egress_policy import EgressPolicy
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.host.allowed_folders import Folders
from holdfast.storage import CheckpointBuckets, StorePolicy

KEYS = {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SECRET_ACCESS_KEY": "theirs"}
CONFINED = Folders(is_confined=True)
ENDPOINT = "AWS_ENDPOINT_URL_S3"

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def s3(service_keys: None, one_s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> FakeS3:
    """A server on loopback, and a service with its own keys."""
    one_s3.renew()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return one_s3


def list_store(
    envs: Mapping[str, str], rules: StorePolicy = StorePolicy(), folders: Folders = CONFINED, store: str = "s3://bucket"
) -> object:  # fmt: skip
    """List the store of a job as the service does."""
    return (
        CheckpointBuckets(SystemClock(), rules, lambda _: folders)
        .open(store, "job-1", envs)
        .list_objects("x/")
    )


@pytest.mark.parametrize(
    "endpoint",
    [
        "{s3}",
        "{s3}/",
        "https://127.0.0.1:9",
        "https://localhost",
        "https://2130706433",
        "https://[::1]",
        "https://[::ffff:127.0.0.1]",
        "https://169.254.169.254",
        "https://10.0.0.1",
        "https://192.88.99.1",
        "http://93.184.215.14",
        "https://user:pw@93.184.215.14",
        "https://93.184.215.14/path",
        "https://93.184.215.14?x=",
        "https://93.184.215.14\r\nX: y",
        "https://[",
        "https://host:99999",
        "file:///etc",
        "gopher://93.184.215.14",
    ],
)
@pytest.mark.parametrize("name", [ENDPOINT, "AWS_ENDPOINT_URL"])
def test_internal_endpoint_of_a_user_is_refused(s3: FakeS3, endpoint: str, name: str) -> None:
    with pytest.raises(CheckpointStoreRefused, match=ENDPOINT):
        list_store({**KEYS, name: endpoint.format(s3=s3.endpoint)})

    assert s3.counts().connections == 0


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"AWS_ACCESS_KEY_ID": "theirs"},
        {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SESSION_TOKEN": "theirs"},
        {**KEYS, "AWS_SECRET_ACCESS_KEY": ""},
    ],
)
def test_service_keys_are_not_used_for_user_endpoints(s3: FakeS3, keys: dict[str, str]) -> None:
    rules = StorePolicy(endpoints=frozenset({s3.endpoint}))

    with pytest.raises(
        CheckpointStoreRefused,
        match="own credentials are not used for an endpoint that a job names",
    ):
        list_store({**keys, ENDPOINT: s3.endpoint}, rules)

    assert s3.counts().connections == 0


def test_an_endpoint_that_the_operator_allows_is_used(s3: FakeS3) -> None:
    allowed = StorePolicy(endpoints=frozenset({f"{s3.endpoint}/"}))

    list_store({**KEYS, ENDPOINT: s3.endpoint}, allowed)

    assert s3.counts().connections == 1


def test_service_endpoint_needs_no_keys_of_a_job(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, s3.endpoint)
    own = StorePolicy(service_endpoint=s3.endpoint)

    list_store({}, own)
    list_store({ENDPOINT: f"{s3.endpoint}/"}, own)

    assert s3.counts().requests == {"ListObjectsV2": 2}


def test_jobs_of_the_owner_may_use_any_endpoint(s3: FakeS3) -> None:
    list_store({ENDPOINT: s3.endpoint}, folders=Folders())

    assert s3.counts().connections == 1


def test_name_with_a_changing_address_is_not_contacted(s3: FakeS3) -> None:
    """A name server may return different addresses for the check and for the connection."""
    result = iter(["93.184.215.14"])

    def resolve(host: str, port: int) -> Sequence[str]:
        return [next(result, "127.0.0.1")]

    port = s3.endpoint.rpartition(":")[2]
    with pytest.raises(CheckpointStoreUnreachable, match=r"127\.0\.0\.1 is not public"):
        list_store(
            {**KEYS, ENDPOINT: f"https://rebinding.example:{port}"},
            StorePolicy(egress_policy=EgressPolicy(resolve=resolve)),
        )

    assert s3.counts().connections == 0


def test_only_profiles_allowed_by_the_operator_are_used(
    s3: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[nlp]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv(ENDPOINT, s3.endpoint)

    with pytest.raises(CheckpointStoreRefused, match="HOLDFAST_STORE_PROFILES"):
        list_store({"AWS_PROFILE": "nlp"})
    list_store({"AWS_PROFILE": "nlp"}, StorePolicy(profiles=frozenset({"nlp"})))

    assert s3.counts().connections == 1


# Folders


def test_user_folder_must_be_below_an_allowed_root(tmp_path: Path) -> None:
    allowed, home = tmp_path / "allowed", tmp_path / "home"
    for folder in (allowed / "job-1", home):
        folder.mkdir(parents=True)
    (allowed / "link").symlink_to(home)
    folders = Folders(home, (str(allowed),), is_confined=True)

    list_store({}, folders=folders, store=f"file://{allowed}")

    for outside in (home, tmp_path, allowed / "link", f"{allowed}/%2e%2e/home"):
        with pytest.raises(
            CheckpointStoreRefused, match=r"HOLDFAST_FOLDERS|service's own directory"
        ):
            list_store({}, folders=folders, store=f"file://{outside}")


def test_job_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    allowed, home = tmp_path / "allowed", tmp_path / "home"
    for folder in (allowed, home / "step-1-e1-ab"):
        folder.mkdir(parents=True)
    (home / "secret").write_text("secret")
    (allowed / "job-1").symlink_to(home)
    buckets = CheckpointBuckets(
        SystemClock(), folders_of=lambda _: Folders(home, (str(allowed),), is_confined=True)
    )
    depot = buckets.open(f"file://{allowed}", "job-1", {})

    for ask in (
        lambda: depot.read("secret"),
        lambda: depot.has("secret"),
        lambda: depot.list_objects(""),
        lambda: depot.list_directories(""),
        lambda: depot.delete(["secret", "step-1-e1-ab/x"]),
    ):
        with pytest.raises(CheckpointStoreRefused, match="Not a directory"):
            ask()

    assert sorted(path.name for path in home.iterdir()) == ["secret", "step-1-e1-ab"]
