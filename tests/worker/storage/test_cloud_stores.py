"""Stores of Google Cloud Storage and Azure Blob Storage: variables, errors and conditions."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_s3 import FakeS3
from holdfast_worker.protocol.object_stores import (
    StoreNotConfigured,
    azure_options,
    cloud_store,
    failure_of,
    google_options,
)
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import (
    ObjectNotFound,
    Store,
    StoreRefused,
    StoreUnreachable,
)
from support.cloud_servers import (
    ACCOUNT,
    CLOUD_SERVERS,
    NO_CREDENTIALS,
    CloudServer,
    azure_variables,
    signature,
)
from worker.support.stores import RankGroup, newest

KEY = base64.b64encode(b"a key").decode()


@pytest.fixture(params=["google", "azure"])
def server(request: pytest.FixtureRequest) -> CloudServer:
    found: CloudServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(server: CloudServer, monkeypatch: pytest.MonkeyPatch) -> Store:
    return server.open(monkeypatch)


ACTIONS: list[Callable[[Store], object]] = [
    lambda store: store.put("a", b"x"),
    lambda store: store.put_if_absent("b", b"x"),
    lambda store: store.swap("newest.json", b"x", b"y"),
    lambda store: store.get("newest.json"),
    lambda store: store.list("commits/"),
    lambda store: store.delete("newest.json"),
]


@pytest.mark.parametrize(
    ("code", "status", "kind", "message"),
    [
        ("NoSuchBucket", 0, StoreRefused, "(NoSuchBucket|ContainerNotFound): .*; create the"),
        ("AccessDenied", 0, StoreRefused, "(AccessDenied|Mismatch): .*; grant the .* the role"),
        ("AuthenticationRequired", 401, StoreRefused, "AuthenticationRequired: .*; check "),
        ("SlowDown", 0, StoreUnreachable, "SlowDown|ServerBusy"),
        ("RateLimitExceeded", 429, StoreUnreachable, "RateLimitExceeded"),
        ("InternalError", 0, StoreUnreachable, "InternalError"),
    ],
)
def test_errors_have_a_reason_and_a_remedy(
    s3: FakeS3, store: Store, code: str, status: int, kind: type[Exception], message: str
) -> None:
    store.put("newest.json", b"x")
    s3.fault("error", code=code, status=status)

    for action in ACTIONS:
        with pytest.raises(kind, match=rf"^(gs|az)://bucket: .*({message})") as raised:
            action(store)
        assert not isinstance(raised.value, ObjectNotFound)
        assert "Debug" not in str(raised.value)


def test_write_whose_response_was_lost_exists(s3: FakeS3, store: Store) -> None:
    s3.fault("lost", on="PutObject", count=1)

    with pytest.raises(StoreUnreachable):
        store.put_if_absent("commits/one", b"mine")

    assert not store.put_if_absent("commits/one", b"mine")
    assert store.get("commits/one") == b"mine"


def test_server_without_conditions_overwrites(s3: FakeS3, store: Store) -> None:
    s3.set(conditional=False)

    assert store.put_if_absent("a", b"one")
    assert store.put_if_absent("a", b"two")
    assert store.swap("a", b"two", b"three")
    assert store.get("a") == b"three"


def test_swap_notices_an_equal_object_written_again(s3: FakeS3, store: Store) -> None:
    """Another writer replaces the pointer by equal bytes between our read and our write."""
    store.put("newest.json", b"one")
    stalled = s3.fault("stall", on="PutObject", key="*newest*", count=1)

    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(store.swap, "newest.json", b"one", b"two")
        assert s3.triggered(stalled, times=1, timeout_s=60) == 1
        store.put("newest.json", b"one")
        s3.calm(stalled)
        is_swapped = swapping.result()

    assert not is_swapped
    assert store.get("newest.json") == b"one"


def test_conflict_with_a_policy_is_an_error(s3: FakeS3, azure: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    store = azure.open(monkeypatch)
    s3.fault("error", code="BlobImmutableDueToPolicy", status=409)

    with pytest.raises(StoreRefused, match="BlobImmutableDueToPolicy"):
        store.put_if_absent("a", b"x")


def test_interrupted_response_is_transient(s3: FakeS3, store: Store) -> None:
    store.put("part", b"x" * 100_000)
    s3.fault("close", on="GetObject", at=0.5)

    with pytest.raises(StoreUnreachable):
        store.get("part")


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_missing_credentials_are_a_refusal(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**NO_CREDENTIALS, "AZURE_STORAGE_ACCOUNT_NAME": "abc"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/nonexistent")

    with pytest.raises(StoreRefused, match=f"^{scheme}://b: no credentials were found: .*; set "):
        open_store(f"{scheme}://b", "job", os.environ).put("a", b"x")


def test_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in azure_variables("http://127.0.0.1:9/here").items():
        monkeypatch.setenv(name, value)

    with pytest.raises(StoreUnreachable, match=r"^az://b: .*http://127\.0\.0\.1:9/here"):
        open_store("az://b", "job", os.environ).put("a", b"x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file .*; check GOOGLE_APPLICATION_CREDENTIALS"),
        ("{", "Unable to decode service account file"),
        ('{"type": "external_account"}', "unknown variant `external_account`"),
    ],
)
def test_unreadable_credentials_are_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, message: str
) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{file}")

    with pytest.raises(StoreRefused, match=message):
        open_store("gs://bucket", "job", os.environ)


def test_wrong_key_of_an_account_is_refused(
    azurite: CloudServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = azurite.open(monkeypatch)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    other = open_store(azurite.runs, "job", os.environ)

    with pytest.raises(StoreRefused, match=r"^az://bucket: AuthorizationFailure: .*; check AZURE_"):
        other.put("a", b"x")
    store.put("a", b"x")


def test_signature_gives_access_and_is_never_shown(
    azurite: CloudServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = azurite.variables["AZURE_STORAGE_ENDPOINT"]
    for name in azurite.variables:
        monkeypatch.delenv(name, raising=False)
    parts = f"BlobEndpoint={endpoint};AccountName={ACCOUNT};SharedAccessSignature="
    good, bad = signature(), signature(key=b"other")

    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", parts + good)
    store = open_store("az://bucket/signed", "job", os.environ)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", parts + bad)
    other = open_store("az://bucket/signed", "job", os.environ)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", parts.replace(endpoint, "http://127.0.0.1:9") + bad)  # fmt: skip
    away = open_store("az://bucket/signed", "job", os.environ)

    assert store.put_if_absent("a", b"x")
    assert store.list("") == ["a"]
    store.delete("a")
    with pytest.raises(StoreRefused) as refused:
        other.put("a", b"x")
    with pytest.raises(StoreUnreachable) as unreachable:
        away.put("a", b"x")
    assert not any("sig=" in str(raised.value) for raised in (refused, unreachable))
    assert refused.value.__cause__ is None


def test_queries_of_urls_are_left_out_of_messages() -> None:
    """Whether obstore hides a signature in an address depends on the request."""
    config = cloud_store("az://b", azure_variables("https://abc.blob.core.windows.net"))
    error = OSError("Generic X error: Error performing PUT https://h/b/k?sv=1&sig=secret in 1ms")

    message = failure_of(error, config).message

    assert message == "az://b: Error performing PUT https://h/b/k in 1ms"


def test_account_and_endpoint_come_from_variables() -> None:
    plain, endpoint = azure_options({"AZURE_STORAGE_ACCOUNT": "acme1", "AZURE_STORAGE_KEY": KEY})
    text = f"DefaultEndpointsProtocol=https;AccountName=acme2;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn"
    connected, china = azure_options({"AZURE_STORAGE_CONNECTION_STRING": text})

    assert (plain["account_name"], plain["account_key"]) == ("acme1", KEY)
    assert endpoint == "https://acme1.blob.core.windows.net"
    assert (connected["account_name"], connected["account_key"]) == ("acme2", KEY)
    assert china == "https://acme2.blob.core.chinacloudapi.cn"
    assert KEY not in repr(cloud_store("az://b/p", {"AZURE_STORAGE_CONNECTION_STRING": text}))


def test_server_of_google_comes_from_variables() -> None:
    usual = google_options({})
    own = google_options({"GOOGLE_BASE_URL": "https://storage-mine.p.googleapis.com"})
    emulated = google_options({"STORAGE_EMULATOR_HOST": "localhost:9023", "GOOGLE_SERVICE_ACCOUNT_KEY": "{"})  # fmt: skip
    named = google_options({"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"gcs_base_url": "http://x"})})

    assert usual == ({}, "https://storage.googleapis.com")
    assert own[1] == "https://storage-mine.p.googleapis.com"
    assert emulated[1] == "http://localhost:9023"
    assert "service_account_key" not in emulated[0]
    assert named[1] == "http://x"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "the storage account is unknown; set AZURE_STORAGE_ACCOUNT_NAME"),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "Evil.com/"}, "not the name of a storage account; write 3"),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "abc", "AZURE_STORAGE_ENDPOINT": "nonsense"},
            "AZURE_STORAGE_ENDPOINT='nonsense': is not an endpoint; write it like https://",
        ),
        ({"AZURE_STORAGE_CONNECTION_STRING": "sesame"}, "has a part without '='; copy it again"),
        (
            {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=abc;AccountKey=ses\name"},
            "CONNECTION_STRING: contains a line break",
        ),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "abc", "AZURE_STORAGE_TOKEN": "ses\name"},
            "AZURE_STORAGE_TOKEN: contains a line break",
        ),
        (
            {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"},
            "names no account; write its BlobEndpoint",
        ),
    ],
)
def test_invalid_variables_of_azure_are_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(StoreNotConfigured, match=message) as raised:
        azure_options(variables)

    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"GOOGLE_SERVICE_ACCOUNT_KEY": "/a/path"}, "is not the JSON of a key; write its content"),
        ({"GOOGLE_BASE_URL": "storage"}, "GOOGLE_BASE_URL='storage': is not an endpoint"),
        ({"GOOGLE_BASE_URL": "https://evil.example\\@here"}, "is not an endpoint; write it like"),
        ({"STORAGE_EMULATOR_HOST": ":0"}, "is not an endpoint; write it like"),
        # obstore would panic at these.
        ({"GOOGLE_BASE_URL": "http://a{b"}, "is not an endpoint; write it like"),
        ({"GOOGLE_BASE_URL": "http://a%zz"}, "is not an endpoint; write it like"),
        ({"GOOGLE_BASE_URL": "http://a\u00e9.example"}, "is not an endpoint; write it like"),
        ({"GOOGLE_BEARER_TOKEN": "a\nb"}, "GOOGLE_BEARER_TOKEN: contains a line break"),
    ],
)
def test_invalid_variables_of_google_are_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(StoreNotConfigured, match=message):
        google_options(variables)


def test_invalid_variables_are_a_refusal_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)

    with pytest.raises(StoreRefused, match="the storage account is unknown"):
        open_store("az://bucket", "job", os.environ)


def test_space_and_slash_at_the_end_of_variables_are_ignored() -> None:
    options, endpoint = google_options({"GOOGLE_BASE_URL": "http://h:1/", "GOOGLE_BEARER_TOKEN": "t\n"})  # fmt: skip

    assert (options["base_url"], endpoint) == ("http://h:1", "http://h:1")
    assert options["bearer_token"] == "t"


@pytest.mark.parametrize("bucket", ["b{ad", "b|d", "us%er", "b:80", "a<b"])
@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_names_that_buckets_cannot_have_are_refused(scheme: str, bucket: str) -> None:
    with pytest.raises(StoreRefused, match="is not the name of a bucket; write letters"):
        open_store(f"{scheme}://{bucket}/x", "job", os.environ)


def test_address_with_a_bracket_is_refused() -> None:
    with pytest.raises(StoreRefused, match="the address must be"):
        open_store("gs://b[d/x", "job", os.environ)


@pytest.mark.parametrize("url", ["gs://b/../x", "gs://b/./x"])
def test_parts_that_keys_cannot_have_are_refused(url: str) -> None:
    with pytest.raises(StoreRefused, match="which keys cannot have; remove it"):
        open_store(url, "job", {})


@pytest.mark.parametrize("kind", CLOUD_SERVERS)
def test_both_servers_answer_conditions_alike(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: CloudServer = request.getfixturevalue(kind)
    store = server.open(monkeypatch, "conditions", request.node.name)
    store.put("a", b"one")

    answers = [
        store.put_if_absent("a", b"two"),
        store.swap("a", b"one", b"one"),
        store.swap("a", b"one", b"two"),
        store.swap("a", b"one", b"three"),
        store.swap("b", None, b"four"),
        store.swap("b", None, b"five"),
        store.swap("c", b"one", b"two"),
    ]

    assert answers == [False, True, True, False, True, False, False]
    assert [store.get(key) for key in "ab"] == [b"two", b"four"]


@pytest.mark.parametrize("fault", ["flip", "rot", "truncate", "swap"])
def test_damaged_part_is_never_loaded(s3: FakeS3, store: Store, tmp_path: Path, fault: str) -> None:
    group = RankGroup(store, tmp_path / "spool")
    group.save(10)
    group.save(20)
    first, second = [key for key in s3.keys("bucket") if "/step-20-" in key and key.endswith("/000000")]  # fmt: skip
    match fault:
        case "flip":
            s3.fault("flip", on="GetObject", key=first)
        case "rot":
            s3.corrupt("bucket", first)
        case "truncate":
            s3.truncate("bucket", first, 5)
        case _:
            s3.swap("bucket", first, second)

    step, rejected = newest(store)

    assert step == 10
    assert len(rejected) == 1
    assert first.partition("/step-20-")[2].partition("/")[2] in rejected[0]
