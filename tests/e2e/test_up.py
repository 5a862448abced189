"""`holdfast up` with a fake SkyPilot, and once with the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.live_service import WithSkyPilot
from support.skypilot.fake_interpreter import FakeInterpreter, configuration, end_all
from support.skypilot.real import PYTHON as SKYPILOT


class UpService(WithSkyPilot):
    """The service and SkyPilot, started by `holdfast up`."""

    def __init__(self, folder: Path) -> None:
        self.interpreter = FakeInterpreter(folder / "interpreter")
        super().__init__(folder, self.interpreter.python)

    def gate_address(self) -> str:
        """The address at which SkyPilot requests admission."""
        return (self.sky_home / ".sky/holdfast-gate").read_text()


@pytest.fixture
def up_service(tmp_path: Path) -> Iterator[UpService]:
    service = UpService(tmp_path)
    yield service
    if service.process:
        service.end(signal.SIGTERM)
    end_all(service.sky_home)
    service.sweep()


def test_up_starts_skypilot_with_the_admission_plugin(up_service: UpService) -> None:
    up_service.start()

    up_service.wait(lambda: up_service.sky()["reachable"], "SkyPilot was probed")
    assert configuration(up_service.sky_home)["admin_policy"] == "holdfast_gate.Gate"
    assert up_service.gate_address().startswith(
        f"http://127.0.0.1:{up_service.port}/v1/skypilot/policy/"
    )
    assert (up_service.interpreter.packages / "holdfast_gate.py").is_file()
    sky = up_service.sky()
    assert (sky["version"], sky["clouds"]) == ("0.14.1", ["aws"])
    assert (sky["guarantee"], sky["waits_for_service"]) == ("exactly-once", False)
    doctor = up_service.cli("doctor", "--json")
    grades = {item["about"]: item["grade"] for item in json.loads(doctor.stdout)}
    assert doctor.returncode == 0, doctor.stdout
    assert grades["launches"] == grades["clouds"] == grades["database"] == "ok"
    assert grades["reports"] == "warning"


@pytest.mark.full
def test_missing_plugin_makes_skypilot_wait_and_doctor_warn(
    up_service: UpService,
) -> None:
    up_service.interpreter.play(
        packages=up_service.interpreter.python / "packages"
    )  # Below a file.

    up_service.start()

    up_service.wait(lambda: up_service.sky()["reachable"], "SkyPilot was probed")
    sky = up_service.sky()
    assert (sky["guarantee"], sky["waits_for_service"]) == ("exactly-once", True)
    doctor = up_service.cli("doctor")
    assert doctor.returncode == 0
    assert "! warning  launches" in doctor.stdout


@pytest.mark.full
def test_skypilot_outlives_the_service_and_is_reused(up_service: UpService) -> None:
    up_service.start()
    first = up_service.sky_pid
    up_service.end(signal.SIGKILL)

    up_service.start()

    assert up_service.sky_pid == first
    assert f"is already running, process {first}" in (up_service.folder / "service.log").read_text()


@pytest.mark.full
def test_up_with_a_configured_server_starts_none(up_service: UpService) -> None:
    up_service.environment["HOLDFAST_SKYPILOT_URL"] = f"http://127.0.0.1:{up_service.sky_port}"

    up_service.start()

    up_service.wait(lambda: up_service.sky()["reachable"] is False, "the silence was noticed")
    assert not up_service.sky_home.exists()
    assert "respond" in up_service.sky()["trouble"]
    listed = up_service.cli("ps")
    assert listed.returncode == 0
    assert "! SkyPilot has not responded since" in listed.stderr
    doctor = up_service.cli("doctor")
    assert doctor.returncode == 1
    assert "✗ missing  skypilot" in doctor.stdout


@pytest.mark.parametrize("has_gate", ["true", pytest.param("false", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name",
    [
        "HOLDFAST_SKYPILOT_CALLBACK_URL",
        pytest.param("HOLDFAST_PUBLIC_URL", marks=pytest.mark.full),
    ],
)
def test_external_server_with_shared_files_is_only_configured(
    up_service: UpService, has_gate: str, name: str
) -> None:
    up_service.environment |= {
        "HOLDFAST_SKYPILOT_URL": f"http://127.0.0.1:{up_service.sky_port}",
        "HOLDFAST_SKYPILOT_SHARES_FILES": "true",
        "HOLDFAST_SKYPILOT_HAS_GATE": has_gate,
        name: "http://holdfast:8642",
    }

    up_service.start()

    policy = configuration(up_service.sky_home)["admin_policy"]
    if has_gate == "true":
        assert policy == "holdfast_gate.Gate"
        policy = up_service.gate_address()
    assert policy.startswith("http://holdfast:8642/v1/skypilot/policy/")
    text = (up_service.folder / "service.log").read_text()
    assert ("set HOLDFAST_SKYPILOT_HAS_GATE=true" in text) is (has_gate == "false")
    assert not (up_service.sky_home / "holdfast-server.json").exists()


@pytest.mark.full
def test_stop_ends_skypilot_but_not_the_service(up_service: UpService) -> None:
    up_service.start()

    stopped, again = up_service.cli("up", "--stop"), up_service.cli("up", "--stop")

    assert stopped.returncode == again.returncode == 0
    assert "has been stopped; start it again with holdfast up" in stopped.stderr
    assert "no SkyPilot API server that was started in" in again.stderr
    assert up_service.cli("ps").returncode == 0


def test_configure_prints_settings_for_a_remote_server(up_service: UpService) -> None:
    answer = up_service.cli(
        "up", "--configure", HOLDFAST_SKYPILOT_CALLBACK_URL="https://holdfast.example.com/"
    )

    assert answer.returncode == 0
    gate, *rest = answer.stdout.splitlines()
    assert gate == "admin_policy: holdfast_gate.Gate"
    assert rest == ["jobs:", "  controller:", "    consolidation_mode: true"]
    for each in (
        "this line: https://holdfast.example.com/v1/skypilot/policy/",
        "skypilot_server/holdfast_gate.py",
        "~/.sky/holdfast-gate",
        "If 1. is impossible",
    ):
        assert each in answer.stderr
    assert not up_service.sky_home.exists()


@pytest.mark.full
def test_configure_keeps_the_policy_url_of_a_running_server(up_service: UpService) -> None:
    """The command runs in another shell, without the port and address of the service."""
    up_service.start()
    before = up_service.gate_address()

    answer = up_service.cli("up", "--configure", "--port", "1")

    assert answer.returncode == 0
    assert "this line: http://127.0.0.1:1/v1/" in answer.stderr
    assert up_service.gate_address() == before


@pytest.mark.full
def test_errors_are_clear_messages_without_traceback(up_service: UpService) -> None:
    up_service.interpreter.play(version=None)
    absent = up_service.cli(*up_service.words, "--port", "0")
    up_service.interpreter.play(crashes=True)
    crashed = up_service.cli(*up_service.words, "--port", "0")
    (up_service.sky_home / ".sky/config.yaml").write_text("a: [")
    torn = up_service.cli(*up_service.words, "--port", "0")

    assert (absent.returncode, crashed.returncode, torn.returncode) == (2, 3, 2)
    assert "holdfast up --install" in absent.stderr
    assert "no room on the stage" in crashed.stderr
    assert "config.yaml is not YAML" in torn.stderr
    assert not any("Traceback" in answer.stderr for answer in (absent, crashed, torn))


@pytest.mark.full
def test_real_skypilot_is_started_configured_reused_and_ended(tmp_path: Path) -> None:
    if not SKYPILOT.exists():
        pytest.skip(f"SkyPilot is not installed at {SKYPILOT}; HOLDFAST_SKYCLOUD names its folder")
    if os.geteuid() != 0:
        pytest.skip("SkyPilot runs without a network, for which root is needed")
    # The namespaces have no route out, and end with their first process.
    alone = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
    output = subprocess.run(
        [*alone, sys.executable, str(Path(__file__).with_name("up_for_real.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert output.returncode == 0, output.stdout + output.stderr
    seen = json.loads(output.stdout.splitlines()[-1])
    assert seen["version"] == "0.14.1"
    assert (seen["guarantee"], seen["waits_for_service"]) == ("exactly-once", False)
    assert seen["telemetry"] is False
    assert seen["policy"] == "holdfast_gate.Gate"
    assert seen["reused"] is True
    assert seen["anew_for_another_address"] is False
    assert seen["asked_there"] == "exactly-once"
    assert list(seen["passes_while_down"].values()) == [True, True, False]
    assert seen["left"] == [], "workers of SkyPilot hold a port after its end"
    assert "jobs controllers keep running" in seen["said_at_the_end"]
