"""The doctor at a checkpoint store, with and without conditional writes or access."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import fake_s3
import pytest
from holdfast.doctor import Grade, check_store
from holdfast.doctor.performance import measure_performance
from holdfast.doctor.stores import check_folder, distance_finding
from holdfast_worker.protocol.policies import ConsistencyGuarantee
from support.cloud_servers import CLOUD_SERVERS, CloudServer
from worker.support.s3_servers import BUCKET, credentials, moto, rclone


@pytest.fixture(scope="module")
def strict() -> Iterator[str]:
    """A server that supports conditional writes."""
    with moto() as (endpoint, _):
        yield endpoint


def _sign(monkeypatch: pytest.MonkeyPatch, endpoint: str, **other: str) -> None:
    for name, value in {**credentials(endpoint), **other}.items():
        monkeypatch.setenv(name, value)


def test_complete_store_is_ok_and_left_empty(strict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _sign(monkeypatch, strict)

    finding = check_store(f"s3://{BUCKET}/runs")
    again = check_store(f"s3://{BUCKET}")

    assert finding.grade is again.grade is Grade.OK
    assert finding.told == (
        f"s3://{BUCKET}/runs: written, written conditionally, read and deleted; it {ConsistencyGuarantee.CONDITIONAL.description}"
    )
    assert again.told.startswith(f"s3://{BUCKET}: ")


def test_store_without_conditional_writes_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone(tmp_path / "s3") as endpoint:
        _sign(monkeypatch, endpoint)

        finding = check_store(f"s3://{BUCKET}/runs")

    assert finding.grade is Grade.WARNING
    assert "conditional writes are not supported" in finding.told
    assert not [path for path in (tmp_path / "s3" / BUCKET).rglob("*") if path.is_file()]


def test_store_without_if_match_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_s3.in_thread(fake_s3.Settings(matching=False)) as s3:
        _sign(monkeypatch, s3.endpoint)

        finding = check_store(f"s3://{BUCKET}/runs")

        assert finding.grade is Grade.WARNING
        assert "but If-Match is not supported" in finding.told
        assert s3.keys(BUCKET) == []


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (PermissionError(errno.EPERM, "Operation not permitted"), "Operation not permitted"),
        (None, "the second of two links replaces the first"),
    ],
)
def test_folder_without_hard_links_is_reported(
    tmp_path: Path, error: OSError | None, problem: str
) -> None:
    """Memory cards and some buckets mounted as a folder behave like this."""

    def link(_file: Path, name: Path) -> None:
        if error:
            raise error
        name.touch()

    finding = check_folder(tmp_path, link)

    assert finding.grade is Grade.MISSING
    assert finding.told.endswith(f"has no hard links, which commits need: {problem}")
    assert list(tmp_path.iterdir()) == []


def test_rejected_keys_are_reported_with_their_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone(tmp_path / "s3") as endpoint:
        _sign(monkeypatch, endpoint, AWS_SECRET_ACCESS_KEY="wrong")

        finding = check_store(f"s3://{BUCKET}/runs")

    assert finding.grade is Grade.MISSING
    assert "AWS_ACCESS_KEY_ID" in finding.todo


def test_missing_keys_and_unreachable_endpoint_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in credentials(""):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    without_keys = check_store(f"s3://{BUCKET}/runs")
    _sign(monkeypatch, "http://127.0.0.1:9")

    anonymous = check_store(f"s3://{BUCKET}/runs")

    assert without_keys.grade is anonymous.grade is Grade.MISSING
    assert "credentials" in without_keys.told
    assert "http://127.0.0.1:9" in anonymous.told


def _server(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> CloudServer:
    server: CloudServer = request.getfixturevalue(kind)
    server.open(monkeypatch)
    return server


@pytest.mark.parametrize("kind", CLOUD_SERVERS)
def test_complete_store_of_another_cloud_is_ok(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _server(kind, request, monkeypatch)

    finding = check_store(f"{server.scheme}://{BUCKET}/doctor/")
    left = server.open(monkeypatch, "", "doctor").list("")

    assert finding.grade is Grade.OK
    assert finding.told == (
        f"{server.scheme}://{BUCKET}/doctor: written, written conditionally, read and deleted; it {ConsistencyGuarantee.CONDITIONAL.description}"
    )
    assert left == []


@pytest.mark.parametrize("kind", ["google", "azure"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conditional": False}, "conditional writes are not supported"),
        ({"matching": False}, "but If-Match is not supported"),
    ],
)
def test_weaker_store_of_another_cloud_is_reported(
    one_s3: fake_s3.FakeS3,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, bool],
    message: str,
) -> None:
    server = _server(kind, request, monkeypatch)
    one_s3.set(**settings)

    finding = check_store(server.runs)

    assert finding.grade is Grade.WARNING
    assert message in finding.told
    assert one_s3.keys(BUCKET) == []


@pytest.mark.parametrize("kind", ["google", "azure"])
def test_refusal_of_another_cloud_names_its_variables(
    one_s3: fake_s3.FakeS3,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = _server(kind, request, monkeypatch)
    one_s3.fault("error", code="AccessDenied")

    finding = check_store(server.runs)

    assert finding.grade is Grade.MISSING
    assert finding.told.startswith(f"{server.scheme}://{BUCKET}: A")
    assert "grant the credentials the role Storage" in finding.told
    assert ("GOOGLE_" if kind == "google" else "AZURE_STORAGE_ACCOUNT_NAME") in finding.todo


def test_unknown_account_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)

    finding = check_store("az://bucket/runs")

    assert finding.grade is Grade.MISSING
    assert "the storage account is unknown; set AZURE_STORAGE_ACCOUNT_NAME" in finding.told


def test_speed_of_another_cloud_is_measured(
    google: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.open(monkeypatch)

    findings = list(measure_performance(tmp_path, google.runs, 0, 1 << 20))

    assert any(f.told.startswith(f"{google.runs}: ") and "MB/s" in f.told for f in findings)


def _job_file(folder: Path, infra: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(f"run: 'true'\nresources: {{infra: {infra}}}\n")
    return file


def test_bucket_in_another_region_than_the_job_is_reported(tmp_path: Path) -> None:
    finding = distance_finding(_job_file(tmp_path, "aws/us-east-1/us-east-1a"), "aws/eu-west-1")

    assert finding is not None
    assert finding.grade is Grade.WARNING
    assert finding.told.startswith("the checkpoint store is in aws/eu-west-1 and the nodes are in")
    assert "each GiB costs $0.0200 to save and $0.0200 to restore" in finding.told
    assert finding.todo == "use a bucket in aws/us-east-1"


@pytest.mark.parametrize(
    ("infra", "place"),
    [("aws/us-east-1", "aws/us-east-1"), ("aws", "aws/us-east-1"), ("aws/us-east-1", "own")],
)
def test_same_or_unknown_region_is_not_reported(tmp_path: Path, infra: str, place: str) -> None:
    assert distance_finding(_job_file(tmp_path, infra), place) is None
