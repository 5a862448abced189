"""`holdfast doctor`: each finding has a state and a remedy; only obstacles count as missing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from holdfast.api.schemas.service import LauncherOut, UndecidedOut
from holdfast.cli import output
from holdfast.client import Client
from holdfast.doctor import (
    Finding,
    Grade,
    check_machine,
    check_service,
    check_store,
    measure_performance,
    store_in,
)
from holdfast.doctor.service import (
    check_skypilot,
    check_slurm,
    check_undecided,
    check_unknown_launches,
    check_users,
)
from holdfast.errors import BadRequest
from holdfast_worker.protocol.policies import ConsistencyGuarantee

HEALTHY = LauncherOut(
    engine="skypilot",
    configured=True,
    reachable=True,
    version="0.14.1",
    guarantee="exactly-once",
    waits_for_service=False,
    clouds=["aws"],
    clock_skew_s=-0.6,
    answered_at=datetime(2026, 11, 21, tzinfo=UTC),
    reports_to="https://holdfast.example.com",
)
MIB = 1024 * 1024
EXAMPLE = Path(__file__).parents[2] / "examples/tiny_gpt/job.yaml"
SINCE = datetime(2026, 11, 21, 10, 12, 3, tzinfo=UTC)


def _sky(**changes: object) -> dict[str, Finding]:
    """Findings about SkyPilot by topic; for repeated topics, the first one."""
    found: dict[str, Finding] = {}
    for finding in check_skypilot(HEALTHY.model_copy(update=changes)):
        found.setdefault(finding.about, finding)
    return found


def test_healthy_setup_needs_no_action() -> None:
    found = _sky()

    assert set(found) == {"skypilot", "clouds", "launches", "clock", "reports"}
    assert {finding.grade for finding in found.values()} == {Grade.OK}
    assert not any(finding.todo for finding in found.values())


def test_lost_launches_are_named_with_the_commands_that_decide() -> None:
    lost = UndecidedOut(launch="j1-1", job_id="j1", what="SkyPilot cluster c in aws/a", since=SINCE)

    [found] = check_undecided([HEALTHY, HEALTHY.model_copy(update={"undecided": [lost]})])

    assert found == Finding(
        about="undecided",
        grade=Grade.MISSING,
        told="the SkyPilot launcher launches nothing for job j1 until you decide: SkyPilot cluster c in aws/a",
        todo="holdfast cancel j1; or holdfast pause j1, then holdfast resume j1",
    )


@pytest.mark.parametrize(
    ("changes", "about", "grade", "message", "todo"),
    [
        ({"version": "0.15.0"}, "skypilot", Grade.MISSING, "none is launched", "skypilot==0.14.1"),
        ({"clouds": []}, "clouds", Grade.MISSING, "no working credentials", "aws configure"),
        ({"clouds": None}, "clouds", Grade.WARNING, "still checking", "in a minute"),
        (
            {"guarantee": "at-most-60s-overlap"},
            "launches",
            Grade.WARNING,
            "concurrently for a minute",
            "holdfast up --configure",
        ),
        (
            {"waits_for_service": True},
            "launches",
            Grade.WARNING,
            "preempted nodes are not replaced",
            "install holdfast_gate.py beside",
        ),
        ({"clock_skew_s": 7.0}, "clock", Grade.WARNING, "7 s ahead of the service's", "NTP"),
        ({"clock_skew_s": -3600.0}, "clock", Grade.WARNING, "3600 s behind the service's", "NTP"),
        ({"clock_skew_s": None}, "clock", Grade.WARNING, "does not report", "synchronize"),
        (
            {"reports_to": "http://127.0.0.1:8642"},
            "reports",
            Grade.WARNING,
            "through the checkpoint store",
            "HOLDFAST_PUBLIC_URL",
        ),
        (
            {"reports_to": "http://localhost:1"},
            "reports",
            Grade.WARNING,
            "their own address",
            "TLS",
        ),
        (
            {"trouble": "it does not answer", "reachable": False},
            "skypilot",
            Grade.MISSING,
            "it does not answer",
            "holdfast up",
        ),
        ({"reachable": None}, "skypilot", Grade.WARNING, "not probed yet", "seconds"),
    ],
)
def test_skypilot_problem_is_reported_with_a_remedy(
    changes: dict[str, object], about: str, grade: Grade, message: str, todo: str
) -> None:
    finding = _sky(**changes)[about]

    assert finding.grade is grade
    assert message in finding.told
    assert todo in finding.todo


@pytest.mark.parametrize("skypilot", [None, LauncherOut(engine="skypilot", configured=False)])
def test_service_without_skypilot_has_no_obstacle(skypilot: LauncherOut | None) -> None:
    (finding,) = check_skypilot(skypilot)

    assert finding.grade is Grade.OK
    assert "holdfast up" in finding.told


SLURM = LauncherOut(
    engine="slurm",
    configured=True,
    reachable=True,
    version="22.05.8",
    clouds=["main", "spot"],
    reports_to="https://holdfast.example.com",
)


def test_reachable_cluster_is_reported_with_its_partitions() -> None:
    (finding,) = check_slurm(SLURM)

    assert finding.grade is Grade.OK
    assert finding.told == "22.05.8, with the partitions main, spot"


@pytest.mark.parametrize(
    ("changes", "grade", "todo"),
    [
        ({"trouble": "Slurm's machine says: no", "reachable": False}, Grade.MISSING, "run sinfo"),
        ({"reachable": None}, Grade.WARNING, "run this again"),
        ({"reports_to": "http://127.0.0.1:8642"}, Grade.WARNING, "HOLDFAST_PUBLIC_URL"),
    ],
)
def test_cluster_problem_is_reported_with_a_remedy(
    changes: dict[str, object], grade: Grade, todo: str
) -> None:
    *_, finding = check_slurm(SLURM.model_copy(update=changes))

    assert finding.grade is grade
    assert todo in finding.todo


@pytest.mark.parametrize("slurm", [None, LauncherOut(engine="slurm", configured=False)])
def test_unconfigured_cluster_is_not_reported(slurm: LauncherOut | None) -> None:
    assert not list(check_slurm(slurm))


def test_launches_missing_from_the_database_are_listed() -> None:
    local = LauncherOut(engine="local", configured=True, strangers=["local launch j1-1"])

    (finding,) = check_unknown_launches([SLURM, local])

    assert finding.grade is Grade.WARNING
    assert "left running: local launch j1-1" in finding.told
    assert "holdfast launches stop KEY" in finding.todo


def test_unsearched_launcher_is_named() -> None:
    unswept = LauncherOut(engine="local", configured=True, swept=False)
    swept = LauncherOut(engine="slurm", configured=True, swept=True)
    silent = LauncherOut(engine="skypilot", configured=True, swept=False, trouble="no answer")

    (finding,) = check_unknown_launches([unswept, swept, silent])

    assert finding.grade is Grade.WARNING
    assert finding.told.startswith("the local launcher was not searched yet")


def test_resources_shared_by_users_are_listed() -> None:
    local = LauncherOut(engine="local", configured=True, users_share="one network")

    (finding,) = check_users([SLURM, local])

    assert finding.grade is Grade.OK
    assert finding.told == "jobs of users with the local launcher share one network"


def _service(answer: Callable[[httpx2.Request], httpx2.Response]) -> list[Finding]:
    with Client("http://service", transport=httpx2.MockTransport(answer)) as client:
        return list(check_service(client, "http://service"))


def test_service_is_reported_with_version_and_revision() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/readyz":
            return httpx2.Response(200, json={"status": "ready", "version": "1", "revision": "7"})
        return httpx2.Response(200, json=[HEALTHY.model_dump(mode="json")])

    service, database, *rest = _service(answer)

    assert service.told == "http://service (Holdfast 1)"
    assert database.told == "revision 7"
    assert [finding.about for finding in rest] == [
        "skypilot",
        "clouds",
        "launches",
        "clock",
        "reports",
    ]


@pytest.mark.parametrize(
    ("status", "todo"),
    [(401, "HOLDFAST_TOKEN"), (503, "log of the service"), (404, "HOLDFAST_URL")],
)
def test_refusing_service_is_reported_with_a_remedy(status: int, todo: str) -> None:
    problem = {"type": "x", "title": "x", "status": status, "detail": "because"}

    (finding,) = _service(lambda _: httpx2.Response(status, json=problem))

    assert finding.grade is Grade.MISSING
    assert "because" in finding.told
    assert todo in finding.todo


def test_absent_service_is_reported_with_how_to_start_one() -> None:
    def refuse_connection(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    (finding,) = _service(refuse_connection)

    assert finding.grade is Grade.MISSING
    assert "holdfast up" in finding.todo


TORCH = {
    "torch": "2.13.0",
    "cuda": None,
    "gpus": [],
    "driver": None,
    "backends": {"gloo": True, "nccl": False, "mpi": False},
}


GPUS = {"gpus": ["A100", "A100"], "cuda": "13.0", "driver": "580.65"}


@pytest.mark.parametrize(
    ("more", "cuda", "gpus"),
    [
        ({}, "none usable here, so ranks compute on CPUs and communicate over gloo", "0"),
        (GPUS, "13.0, driver 580.65", "2 (A100)"),
    ],
)
def test_machine_reports_torch_cuda_backends_and_gpus(
    more: dict[str, object], cuda: str, gpus: str
) -> None:
    _, *found = check_machine(lambda: True, lambda: json.dumps({**TORCH, **more}))

    assert {finding.grade for finding in found} == {Grade.OK}
    assert {finding.about: finding.told for finding in found} == {
        "torch": "2.13.0",
        "cuda": cuda,
        "backends": "gloo ✓ · nccl ✗ · mpi ✗",
        "gpus": gpus,
    }


def test_machine_without_torch_is_ok_and_not_probed() -> None:
    def ask() -> str:
        raise AssertionError("torch must not be probed")

    _, finding = check_machine(lambda: False, ask)

    assert finding.grade is Grade.OK
    assert "not installed" in finding.told


def test_broken_torch_is_reported_with_its_last_error() -> None:
    def ask() -> str:
        stderr = "Traceback ...\nOSError: libcudart.so.13: cannot open shared object file\n"
        raise subprocess.CalledProcessError(1, ["python"], stderr=stderr)

    _, finding = check_machine(lambda: True, ask)

    assert finding.grade is Grade.WARNING
    assert finding.told.endswith("OSError: libcudart.so.13: cannot open shared object file")


def test_installed_torch_is_probed() -> None:
    found = {finding.about: finding for finding in check_machine()}

    assert {finding.grade for finding in found.values()} == {Grade.OK}
    assert "gloo ✓" in found["backends"].told


def test_cores_disk_network_store_and_loader_are_checked(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"

    found = {one.about: one for one in measure_performance(tmp_path, store, gpus=0, size_bytes=MIB)}

    assert set(found) == {"cores", "disk", "loopback", "store", "loader"}
    assert "MB/s over 1 MB" in found["loopback"].told
    assert found["store"].told.startswith(f"{store}: ")
    assert "in the script and not measured" in found["loader"].told
    assert list(tmp_path.iterdir()) == [], "no file remains"


def test_few_cores_for_many_gpus_are_reported(tmp_path: Path) -> None:
    few = next(measure_performance(tmp_path, None, gpus=1000, size_bytes=MIB))

    assert few.grade is Grade.WARNING
    assert "steps will wait for loaders" in few.told


def test_a_store_that_cannot_be_written_is_not_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    *_, store, _ = measure_performance(
        tmp_path, f"file://{tmp_path}/file/x", gpus=0, size_bytes=MIB
    )

    assert store.grade is Grade.WARNING
    assert "not measured" in store.told


@pytest.mark.parametrize(
    "store", ["bucket/prefix", "gs://", "r2://bucket/x", "s3://", "file://x", ""]
)
def test_invalid_store_is_reported(store: str) -> None:
    finding = check_store(store)

    assert finding.grade is Grade.MISSING
    assert "s3://bucket/prefix" in finding.todo


def test_example_store_is_ok_and_left_unchanged() -> None:
    store = store_in(EXAMPLE)
    assert store
    folder = Path(store.removeprefix("file://"))
    before = folder.exists()

    finding = check_store(store)

    assert finding.grade is Grade.OK
    assert finding.told == (
        f"{folder} can be written here; all nodes of a job must share it; it {ConsistencyGuarantee.CONDITIONAL.description}"
    )
    assert folder.exists() is before


def test_unwritable_local_folder_is_only_a_warning(tmp_path: Path) -> None:
    """A file blocks the path, which also stops root."""
    (tmp_path / "file").touch()

    finding = check_store(f"file://{tmp_path}/file/runs")

    assert finding.grade is Grade.WARNING
    assert "cannot be written here: Not a directory" in finding.told
    assert "all nodes share" in finding.todo


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("holdfast: {checkpoint: {store: s3://b/p}}", "s3://b/p"),
        ("run: x", None),
        ("holdfast: {checkpoint: 5}", None),
        ("holdfast:", None),
        ("- a list", None),
    ],
)
def test_store_of_a_job_file_is_checked(tmp_path: Path, text: str, store: str | None) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)

    assert store_in(file) == store


@pytest.mark.parametrize("text", [None, "run: ["])
def test_unreadable_job_file_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "job.yaml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(BadRequest, match="cannot be read as a job file"):
        store_in(file)


def test_stale_launcher_banner_states_start_and_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = HEALTHY.model_copy(update={"trouble": "no route", "since": SINCE, "reachable": False})
    answer = [silent.model_dump(mode="json"), HEALTHY.model_dump(mode="json")]
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=answer))

    with Client("http://service", transport=transport) as client:
        output.warn_stale_launchers(client)

    result = capsys.readouterr()
    assert result.out == ""
    assert result.err == (
        f"! SkyPilot has not responded since {SINCE:%Y-%m-%d} 10:12:03Z; "
        "the data below may be out of date: no route\n"
    )


@pytest.mark.parametrize("status", [404, 500])
def test_failed_health_request_prints_no_banner(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status))

    with Client("http://service", transport=transport) as client:
        output.warn_stale_launchers(client)

    assert capsys.readouterr().err == ""
