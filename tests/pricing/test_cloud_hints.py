"""Capacity hints of Google Cloud and Azure, from servers on loopback that check requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from holdfast.ports import CapacityHint, CapacityHints
from holdfast.pricing import azure, cloud_http, gcp
from holdfast.pricing.azure import AzureScores
from holdfast.pricing.capacity_hints import (
    AZURE_SOURCE,
    GOOGLE_SOURCE,
    AzureCapacityHints,
    CloudCapacityHints,
    GoogleCapacityHints,
    open_capacity_hints,
)
from holdfast.pricing.gcp import GoogleAdvice
from support.cloud_apis import AZURE_ENVIRONMENT, CloudApis
from support.fakes import FixedClock

A3 = "a3-highgpu-8g"
H100 = "Standard_ND96asr_v4"
ZONE = "gcp/us-central1/us-central1-a"
SHARDS = [{"instanceCount": 2, "machineType": A3, "provisioningModel": "SPOT", "zone": "zones/z"}]
ADVICE = {
    "recommendations": [
        {"scores": {"obtainability": 0.7, "estimatedUptime": "600s"}, "shards": SHARDS}
    ]
}


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def apis(key: rsa.RSAPrivateKey) -> Iterator[CloudApis]:
    apis = CloudApis(public_key=key.public_key(), advice=(200, ADVICE))
    with apis.opened():
        yield apis


@pytest.fixture
def key_file(apis: CloudApis, key: rsa.RSAPrivateKey, tmp_path: Path) -> Path:
    return write_key(tmp_path, apis, key)


@pytest.fixture
def google(apis: CloudApis, clock: FixedClock, key_file: Path) -> GoogleCapacityHints:
    return google_hints(apis, clock, {"GOOGLE_APPLICATION_CREDENTIALS": str(key_file)})


@pytest.fixture
def azure_hints(apis: CloudApis, clock: FixedClock) -> AzureCapacityHints:
    return azure_with(apis, clock, AZURE_ENVIRONMENT)


def write_key(folder: Path, apis: CloudApis, key: Any) -> Path:
    """A service account's key as Google Cloud hands it out."""
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / "key.json"
    content = {
        "type": "service_account",
        "project_id": "a-project",
        "private_key_id": "a-key",
        "private_key": pem.decode(),
        "client_email": "holdfast@a-project.iam.gserviceaccount.com",
        "token_uri": f"{apis.url}/token",
    }
    file.write_text(json.dumps(content))
    return file


def google_hints(
    apis: CloudApis, clock: FixedClock, environment: dict[str, str]
) -> GoogleCapacityHints:
    url = f"{apis.url}/compute/beta"
    return GoogleCapacityHints(GoogleAdvice(clock, environment.get, url=url, metadata_url=apis.url))


def azure_with(
    apis: CloudApis, clock: FixedClock, environment: dict[str, str]
) -> AzureCapacityHints:
    return AzureCapacityHints(
        AzureScores(clock, environment.get, url=apis.url, login_url=apis.url, metadata_url=apis.url)
    )


def day(end: datetime, rate: Any) -> dict[str, Any]:
    """An entry of `preemptionHistory`, which ends at a time."""
    interval = {
        "startTime": f"{end - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}",
        "endTime": f"{end:%Y-%m-%dT%H:%M:%SZ}",
    }
    return {"interval": interval, "preemptionRate": rate}


def azure_score(score: str, **known: Any) -> dict[str, Any]:
    return {"sku": H100, "region": "eastus", "score": score, "isQuotaAvailable": True, **known}


def probability(hints: CapacityHints, place: str, kind: str, clock: FixedClock) -> float | None:
    hint = hints.score(place, kind, 2, clock.now())
    return hint.probability if hint else None


def test_google_advice_is_of_the_zone(
    apis: CloudApis, google: GoogleCapacityHints, clock: FixedClock
) -> None:
    now = clock.now()
    rates = [day(now - timedelta(days=n), 0.5 if n < 7 else 1.0) for n in range(30)]
    today = day(now + timedelta(hours=3), 1.0)
    apis.history = 200, {"machineType": A3, "preemptionHistory": [today, *rates]}

    hint = google.score(f"{ZONE}#2", A3, 2, now)

    assert hint == CapacityHint(
        probability=0.7, source=GOOGLE_SOURCE, as_of=now, uptime_s=600, preemption_rate=0.5
    )
    zone = {"zones": [{"zone": "zones/us-central1-a"}]}
    assert apis.bodies == [
        {
            "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
            "instanceFlexibilityPolicy": {"instanceSelections": {"nodes": {"machineTypes": [A3]}}},
            "size": 2,
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", **zone},
        },
        {
            "instanceProperties": {
                "machineType": A3,
                "scheduling": {"provisioningModel": "SPOT"},
            },
            "types": ["PREEMPTION"],
            "locationPolicy": {"location": "zones/us-central1-a"},
        },
    ]


@pytest.mark.parametrize("place", ["gcp/us-central1", "gcp/*/us-central1-a"])
def test_google_region_and_zone_without_one(
    apis: CloudApis, google: GoogleCapacityHints, clock: FixedClock, place: str
) -> None:
    assert probability(google, place, A3, clock) == 0.7
    assert ("zones" in apis.bodies[0]["distributionPolicy"]) == ("*" in place)


@pytest.mark.parametrize(
    ("place", "machine_type"),
    [
        ("gcp", A3),
        ("aws/us-east-1", A3),
        ("any", A3),
        ("gcp/us-central1", None),
        ("gcp/us-central1", ""),
        ("gcp/us-central1", "n1-standard-8"),
        ("gcp/us-central1", "n2-custom-4-8192"),
        ("gcp/us-central1", "TPU-VM"),
        ("gcp/../secrets", A3),
        ("gcp/us-central1/a zone", A3),
    ],
)
def test_google_is_not_asked_what_it_cannot_answer(
    apis: CloudApis,
    google: GoogleCapacityHints,
    clock: FixedClock,
    place: str,
    machine_type: str | None,
) -> None:
    assert google.score(place, machine_type, 1, clock.now()) is None
    assert (apis.bodies, apis.tokens) == ([], 0)


@pytest.mark.parametrize(
    "advice",
    [
        {},
        {"recommendations": []},
        {"recommendations": [{"scores": {}}]},
        {"recommendations": [{"scores": {"obtainability": 1.5}}]},
        {"recommendations": [{"scores": {"obtainability": "0.7"}}]},
        {"recommendations": "none"},
        [],
        "<html>a proxy</html>",
    ],
)
def test_garbled_advice_is_no_hint(
    apis: CloudApis, google: GoogleCapacityHints, clock: FixedClock, advice: Any
) -> None:
    apis.advice = 200, advice

    assert google.score(ZONE, A3, 2, clock.now()) is None


@pytest.mark.parametrize(
    "history",
    [
        (200, {}),
        (200, {"preemptionHistory": "none"}),
        (200, {"preemptionHistory": [{}, {"interval": {"endTime": "soon"}, "preemptionRate": 1}]}),
        (403, {"error": {"code": 403, "message": "Required 'compute.advice.capacityHistory'"}}),
        (500, "oops"),
    ],
)
def test_hint_needs_no_history(
    apis: CloudApis, google: GoogleCapacityHints, clock: FixedClock, history: Any
) -> None:
    apis.history = history

    hint = google.score(ZONE, A3, 2, clock.now())

    assert hint is not None
    assert (hint.probability, hint.preemption_rate) == (0.7, None)


def test_machine_without_a_key_asks_its_metadata(apis: CloudApis, clock: FixedClock) -> None:
    hints = google_hints(apis, clock, {})

    assert probability(hints, ZONE, A3, clock) == 0.7


def test_login_of_a_user_gives_access(apis: CloudApis, clock: FixedClock, tmp_path: Path) -> None:
    login = {
        "type": "authorized_user",
        "client_id": "a-client",
        "client_secret": "a-secret",
        "refresh_token": "a-refresh",
        "token_uri": f"{apis.url}/token",
    }
    file = tmp_path / "login.json"
    file.write_text(json.dumps(login))
    known = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}

    without = google_hints(apis, clock, known)
    named = google_hints(apis, clock, known | {"GOOGLE_CLOUD_PROJECT": "a-project"})

    assert probability(without, ZONE, A3, clock) is None
    assert probability(named, ZONE, A3, clock) == 0.7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (FileNotFoundError)"),
        ("{", "cannot be read (JSONDecodeError)"),
        ("[]", "has no credentials"),
        ('{"type": "external_account", "project_id": "p"}', "type 'external_account' are not"),
        ('{"type": "service_account", "project_id": "p"}', "the credentials have no client_email"),
        ('{"type": "service_account", "project_id": "p/../q"}', "is not a project of Google Cloud"),
    ],
)
def test_unusable_google_credentials_are_named(
    apis: CloudApis,
    clock: FixedClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: str | None,
    words: str,
) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content.replace('"p"', f'"p", "token_uri": "{apis.url}/token"'))
    hints = google_hints(apis, clock, {"GOOGLE_APPLICATION_CREDENTIALS": str(file)})

    with caplog.at_level(logging.INFO):
        found = [probability(hints, f"{ZONE[:-1]}{zone}", A3, clock) for zone in "abc"]

    assert found == [None] * 3
    assert [words in record.message for record in caplog.records] == [True, False]


def test_key_that_is_not_rsa_is_refused(
    apis: CloudApis, clock: FixedClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_key(tmp_path, apis, ec.generate_private_key(ec.SECP256R1()))

    hints = google_hints(apis, clock, {"GOOGLE_APPLICATION_CREDENTIALS": str(file)})

    assert probability(hints, ZONE, A3, clock) is None
    assert "is no RSA key" in caplog.text


def test_refused_token_is_not_requested_for_each_place(
    apis: CloudApis, clock: FixedClock, caplog: pytest.LogCaptureFixture
) -> None:
    hints = azure_with(apis, clock, AZURE_ENVIRONMENT | {"AZURE_CLIENT_SECRET": "expired"})

    found = [hints.score(f"azure/region{n}", H100, 1, clock.now()) for n in range(5)]

    assert (found, apis.tokens) == ([None] * 5, 0)
    [record] = caplog.records
    assert record.message.startswith("Azure's spot market is unavailable: 127.0.0.1:")
    assert record.message.endswith("answered with status 400: invalid_grant")


def test_azure_scores_zones_and_regions(
    apis: CloudApis, azure_hints: AzureCapacityHints, clock: FixedClock
) -> None:
    now = clock.now()
    zones = [
        azure_score("DataNotFoundOrStale", availabilityZone="1"),
        azure_score("High", availabilityZone="2"),
        azure_score("Low", availabilityZone="3"),
        azure_score("High", availabilityZone="1", sku="Standard_D2_v3"),
    ]
    apis.scores = 200, {"placementScores": zones}
    found = [
        probability(azure_hints, f"azure/eastus/{zone}", H100, clock)
        for zone in ("1", "2", "3", "eastus-3")
    ]
    apis.scores = 200, {"placementScores": [azure_score("Medium", availabilityZone="False")]}

    region = azure_hints.score("azure/eastus", H100, 2, now)

    assert found == [None, 0.85, 0.15, 0.15]
    assert region == CapacityHint(probability=0.5, source=AZURE_SOURCE, as_of=now)
    question = {"desiredLocations": ["eastus"], "desiredSizes": [{"sku": H100}], "desiredCount": 2}
    assert apis.bodies == [
        {**question, "availabilityZones": True},
        {**question, "availabilityZones": False},
    ]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([azure_score("High", isQuotaAvailable=False)], 0.0),
        ([azure_score("RestrictedSkuNotAvailable")], None),
        ([azure_score("High", region="westus")], None),
        (["High", None], None),
        ({}, None),
        (None, None),
    ],
)
def test_azure_answers_without_a_usable_score(
    apis: CloudApis,
    azure_hints: AzureCapacityHints,
    clock: FixedClock,
    scores: Any,
    expected: float | None,
) -> None:
    apis.scores = 200, {"placementScores": scores}

    assert probability(azure_hints, "azure/eastus", H100, clock) == expected


def test_azure_managed_identity_gives_access(apis: CloudApis, clock: FixedClock) -> None:
    apis.scores = 200, {"placementScores": [azure_score("High")]}
    subscription = {"AZURE_SUBSCRIPTION_ID": AZURE_ENVIRONMENT["AZURE_SUBSCRIPTION_ID"]}

    hints = azure_with(apis, clock, subscription)

    assert probability(hints, "azure/eastus", H100, clock) == 0.85


@pytest.mark.parametrize("subscription", [None, "../secrets"])
def test_azure_is_not_asked_without_a_subscription(
    apis: CloudApis, clock: FixedClock, subscription: str | None
) -> None:
    environment = AZURE_ENVIRONMENT | ({"AZURE_SUBSCRIPTION_ID": subscription or ""})

    hints = azure_with(apis, clock, environment)

    assert hints.score("azure/eastus", H100, 1, clock.now()) is None
    assert (apis.tokens, apis.bodies) == (0, [])


def test_answers_are_kept_and_renewed(
    apis: CloudApis, google: GoogleCapacityHints, clock: FixedClock
) -> None:
    asked_at = clock.now()
    google.score(ZONE, A3, 2, asked_at)
    clock.advance(gcp.ADVICE_TTL.total_seconds() - 1)
    kept = google.score(ZONE, A3, 2, clock.now())
    questions = len(apis.bodies)
    clock.advance(1)

    renewed = google.score(ZONE, A3, 2, clock.now())

    assert kept is not None
    assert renewed is not None
    assert (kept.as_of, renewed.as_of) == (asked_at, asked_at + gcp.ADVICE_TTL)
    assert (questions, len(apis.bodies), apis.tokens) == (2, 3, 2)


def test_questions_of_a_day_are_limited(
    apis: CloudApis,
    azure_hints: AzureCapacityHints,
    clock: FixedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    azure_hints.spot._cache.per_day = 3
    for number in range(5):
        azure_hints.score("azure/eastus", f"Standard_D{number}", 1, clock.now())
    today = len(apis.bodies)
    clock.advance(timedelta(days=1).total_seconds())

    azure_hints.score("azure/eastus", "Standard_D9", 1, clock.now())

    assert (today, len(apis.bodies)) == (3, 4)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_cloud_in_trouble_is_left_alone_for_a_time(
    apis: CloudApis, google: GoogleCapacityHints, clock: FixedClock, status: int
) -> None:
    apis.advice = status, "try later"
    found = [probability(google, f"{ZONE[:-1]}{zone}", A3, clock) for zone in "abcd"]
    questions = len(apis.bodies)
    apis.advice = 200, ADVICE
    clock.advance(cloud_http.OUTAGE_PAUSE.total_seconds())

    assert (found, questions) == ([None] * 4, 1)
    assert probability(google, ZONE, A3, clock) == 0.7


def test_cloud_that_cannot_be_reached_gives_no_hint(
    apis: CloudApis, clock: FixedClock, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = "http://127.0.0.1:9"
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(key_file)}
    hints = GoogleCapacityHints(GoogleAdvice(clock, environment.get, url=url))

    found = [probability(hints, f"{ZONE[:-1]}{zone}", A3, clock) for zone in "abcd"]

    assert found == [None] * 4
    assert [record.message for record in caplog.records] == [
        "Google Cloud's advice is unavailable: 127.0.0.1:9 did not answer (ConnectError)"
    ]


def test_time_spent_on_a_slow_cloud_is_limited(
    apis: CloudApis, google: GoogleCapacityHints, clock: FixedClock
) -> None:
    passed_s = iter(range(1000))
    google.advice.http.monotonic_s = lambda: float(next(passed_s))

    first = [probability(google, f"{ZONE[:-1]}{zone}", A3, clock) for zone in "abcd"]
    clock.advance(cloud_http.MINUTE.total_seconds())
    later = [probability(google, f"{ZONE[:-1]}{zone}", A3, clock) for zone in "abcd"]

    # The token took two seconds and the first advice two more.
    assert first == [0.7, None, None, None]
    assert later == [0.7, 0.7, None, None]


def test_answer_that_is_too_long_is_given_up(
    apis: CloudApis,
    google: GoogleCapacityHints,
    clock: FixedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    apis.advice = 200, "x" * (cloud_http.MAX_REPLY_BYTES + 1)

    assert google.score(ZONE, A3, 2, clock.now()) is None
    assert "did not answer (ReadError)" in caplog.text


def test_answer_that_takes_too_long_is_given_up(
    apis: CloudApis,
    google: GoogleCapacityHints,
    clock: FixedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    passed_s = iter([0.0, cloud_http.TOTAL_S + 1])
    google.advice.http.monotonic_s = lambda: next(passed_s)

    assert google.score(ZONE, A3, 2, clock.now()) is None
    assert "did not answer (ReadTimeout)" in caplog.text


def test_each_cloud_hints_at_its_own_places(clock: FixedClock) -> None:
    hints = open_capacity_hints(("aws", "gcp", "azure"), clock, {}.get)

    assert isinstance(hints, CloudCapacityHints)
    assert {name: type(cloud).__name__ for name, cloud in hints.clouds.items()} == {
        "aws": "AwsCapacityHints",
        "gcp": "GoogleCapacityHints",
        "azure": "AzureCapacityHints",
    }
    assert hints.score("slurm/hpc/gpu", A3, 1, clock.now()) is None
    assert hints.score("any", A3, 1, clock.now()) is None
    assert hints.score("azure/eastus", H100, 1, clock.now()) is None
    assert azure.PROBABILITIES.keys() == {"high", "medium", "low"}
