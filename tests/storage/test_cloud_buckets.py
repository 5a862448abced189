"""Buckets of Google and Azure as the service uses them: times, errors, settings and confinement."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest
from fake_s3 import FakeS3
from holdfast.clock import SystemClock
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable
from holdfast.host.allowed_folders import Folders
from holdfast.ports import CheckpointBucket
from holdfast.storage import CheckpointBuckets, StorePolicy
from holdfast_worker.protocol.object_stores import VARIABLES
from support.cloud_servers import ACCOUNT_KEY, FAKE_CLOUDS, NO_CREDENTIALS, CloudServer

BUCKET = "bucket"
ONE = "runs/job-1/commits/one"
CONFINED = Folders(is_confined=True)
FREE = Folders()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without credentials of its own."""
    for name in (*VARIABLES["gs"], *VARIABLES["az"]):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    for name, value in NO_CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3(one_s3: FakeS3) -> FakeS3:
    """An empty server."""
    one_s3.renew()
    return one_s3


@pytest.fixture(params=["gs", "az"])
def server(request: pytest.FixtureRequest, s3: FakeS3) -> CloudServer:
    """The server in the protocol of each cloud."""
    return FAKE_CLOUDS[request.param](s3)


def open_store(
    store: str,
    envs: Mapping[str, str],
    rules: StorePolicy = StorePolicy(),
    folders: Folders = CONFINED,
) -> CheckpointBucket:
    return CheckpointBuckets(SystemClock(), rules, lambda _: folders).open(store, "job-1", envs)


def open_on(server: CloudServer) -> CheckpointBucket:
    return open_store(server.runs, server.variables, folders=FREE)


def test_ages_use_the_clock_of_the_server(s3: FakeS3, server: CloudServer) -> None:
    s3.set(skew_s=86_400)
    s3.write(BUCKET, ONE, b"")

    look = open_on(server).list_objects("commits/")

    ahead = look.listed_at - SystemClock().now()
    assert timedelta(hours=23) < ahead < timedelta(hours=25)
    assert look.listed_at - look.objects[0].written_at < timedelta(seconds=60)


def test_slow_down_response_is_retried(s3: FakeS3, server: CloudServer) -> None:
    s3.write(BUCKET, ONE, b"")
    s3.fault("error", code="SlowDown", on="ListObjectsV2", count=1)
    s3.fault("error", code="InternalError", on="Delete*", count=1)
    bucket = open_on(server)

    bucket.delete([item.key for item in bucket.list_objects("commits/").objects])

    assert s3.keys(BUCKET) == []


def test_truncated_listing_page_is_an_error(s3: FakeS3, server: CloudServer) -> None:
    for number in range(30):
        s3.write(BUCKET, f"runs/job-1/commits/{number}", b"")
    s3.set(page_keys=10)
    s3.fault("error", code="ServiceUnavailable", on="ListObjectsV2", skip=1)

    with pytest.raises(CheckpointStoreUnreachable, match="ServiceUnavailable"):
        open_on(server).list_objects("commits/")


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("AccessDenied", CheckpointStoreRefused, "AccessDenied|AuthorizationPermissionMismatch"),
        ("NoSuchBucket", CheckpointStoreRefused, "NoSuchBucket|ContainerNotFound"),
        ("RateLimitExceeded", CheckpointStoreUnreachable, "RateLimitExceeded"),
    ],
)
def test_refused_access_raises_the_servers_error_code(
    s3: FakeS3, server: CloudServer, code: str, kind: type[Exception], message: str
) -> None:
    s3.fault("error", code=code, status=429 if code.startswith("Rate") else 0)
    bucket = open_on(server)
    actions: list[Callable[[], object]] = [
        lambda: bucket.list_objects("commits/"),
        lambda: bucket.list_directories("step-"),
        lambda: bucket.read("commits/a"),
        lambda: bucket.delete(["commits/a"]),
    ]

    for action in actions:
        with pytest.raises(kind, match=rf"^(gs|az)://bucket: ({message}): "):
            action()


@pytest.mark.parametrize(
    ("store", "envs", "kind", "message"),
    [
        ("gs://b", {}, CheckpointStoreRefused, "no credentials were found"),
        ("az://b", {}, CheckpointStoreRefused, "the storage account is unknown"),
        (
            "az://b",
            {
                "AZURE_STORAGE_ACCOUNT_NAME": "abc",
                "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
                "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9",
            },
            CheckpointStoreUnreachable,
            "127.0.0.1:9",
        ),
        (
            "gs://b",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/nope"},
            CheckpointStoreRefused,
            "/nope: No such file or directory",
        ),
    ],
)
def test_unusable_settings_are_reported(
    store: str, envs: dict[str, str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        open_store(store, envs, folders=FREE).read("a")


def test_jobs_with_equal_settings_share_connections(s3: FakeS3, server: CloudServer) -> None:
    buckets = CheckpointBuckets(SystemClock())
    for number in range(9):
        envs = {**server.variables, "LR": f"{number}"}
        buckets.open(server.runs, f"job-{number}", envs).read("a")

    assert s3.counts().requests == {"GetObject": 9}
    assert s3.counts().connections < 9


def test_credentials_of_a_job_are_not_mixed_with_the_services(
    azurite: CloudServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service has a valid key, and the job an invalid signature: the service's must not be used."""
    for name, value in azurite.variables.items():
        monkeypatch.setenv(name, value)

    assert open_store(azurite.runs, {}).read("absent") is None
    with pytest.raises(CheckpointStoreRefused, match=r"AuthenticationFailed|AuthorizationFailure"):
        open_store(azurite.runs, {"AZURE_STORAGE_SAS_TOKEN": "sv=2019-12-12&sig=no"}).read("absent")


# Jobs of users


def test_server_of_the_service_needs_no_keys_of_a_job(
    s3: FakeS3, server: CloudServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    place = {k: v for k, v in server.variables.items() if k != "AZURE_STORAGE_ACCOUNT_KEY"}

    open_store(server.runs, {}).read("a")
    open_store(server.runs, place).read("a")

    assert s3.counts().requests == {"GetObject": 2}


@pytest.mark.parametrize(
    "endpoint",
    [
        "{s3}",
        "https://127.0.0.1:9",
        "http://169.254.169.254",
        "https://evil.example",
        "{s3}/_google",
        "https://storage.googleapis.com.evil.example",
    ],
)
def test_other_servers_are_refused_unless_allowed(s3: FakeS3, endpoint: str) -> None:
    where = endpoint.format(s3=s3.endpoint)
    key = json.dumps({"gcs_base_url": where, "disable_oauth": True, "client_email": "", "private_key": ""})  # fmt: skip
    text = f"AccountName=abc;AccountKey={ACCOUNT_KEY};BlobEndpoint={where}"
    azure = {"AZURE_STORAGE_ACCOUNT_NAME": "abc", "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}

    for store, envs in (
        ("gs://bucket", {"GOOGLE_BASE_URL": where, "GOOGLE_BEARER_TOKEN": "theirs"}),
        ("gs://bucket", {"STORAGE_EMULATOR_HOST": where}),
        ("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT_KEY": key}),
        ("az://bucket", {**azure, "AZURE_STORAGE_ENDPOINT": where}),
        ("az://bucket", {"AZURE_STORAGE_CONNECTION_STRING": text}),
    ):
        with pytest.raises(CheckpointStoreRefused, match="HOLDFAST_STORE_ENDPOINTS does not allow"):
            open_store(store, envs).list_objects("x/")

    assert s3.counts().connections == 0


def test_server_that_the_operator_allows_is_used(s3: FakeS3, server: CloudServer) -> None:
    allowed = StorePolicy(endpoints=frozenset({s3.endpoint}))
    keys = {**server.variables, "GOOGLE_BEARER_TOKEN": "theirs"}

    open_store(server.runs, keys, allowed).read("a")

    assert s3.counts().requests == {"GetObject": 1}


@pytest.mark.parametrize(
    ("store", "envs"),
    [
        ("az://bucket", {"AZURE_STORAGE_ACCOUNT_NAME": "theirs"}),
        ("az://bucket", {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=theirs"}),
        ("gs://bucket", {"GOOGLE_BASE_URL": "https://storage.googleapis.com"}),
    ],
)
def test_service_keys_are_not_used_where_a_job_says(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch, store: str, envs: dict[str, str]
) -> None:
    for cloud in FAKE_CLOUDS.values():
        for name, value in cloud(s3).variables.items():
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_BASE_URL", s3.google)

    with pytest.raises(
        CheckpointStoreRefused, match="own credentials are not used for a server or"
    ):
        open_store(store, envs).read("a")


@pytest.mark.parametrize(
    "name",
    ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "AZURE_FEDERATED_TOKEN_FILE",
     "AZURE_AUTHORITY_HOST"],
)  # fmt: skip
def test_files_and_servers_of_the_machine_are_refused(name: str) -> None:
    store = "gs://bucket" if name.startswith("GOOGLE") else "az://bucket"

    with pytest.raises(CheckpointStoreRefused, match=f"^{name}=/etc/key: names something on the"):
        open_store(store, {name: "/etc/key"})


def test_invalid_account_of_a_user_is_refused() -> None:
    envs = {"AZURE_STORAGE_ACCOUNT_NAME": "evil.example/", "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}

    with pytest.raises(CheckpointStoreRefused, match="is not the name of a storage account"):
        open_store("az://bucket", envs)


def test_domain_of_a_connection_string_is_checked() -> None:
    text = f"AccountName=abc;AccountKey={ACCOUNT_KEY};EndpointSuffix=evil.example"

    with pytest.raises(CheckpointStoreRefused, match=r"evil\.example: is not a server of Google"):
        open_store("az://bucket", {"AZURE_STORAGE_CONNECTION_STRING": text})
