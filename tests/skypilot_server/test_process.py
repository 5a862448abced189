"""SkyPilot's server as a process: started once, reused, recognized, and stopped alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import psutil
import pytest
from holdfast import skypilot_server
from holdfast.errors import AddressInUse, EngineNotStarted, NotInstalled, StoreUnavailable
from holdfast.skypilot_server import ServerDir, process
from support.skypilot.fake_interpreter import configuration
from support.skypilot.server_dir import GATE, ServerDirHarness, is_alive


def test_server_starts_with_its_own_home_and_configuration(
    harness: ServerDirHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_secret")
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", "http://somewhere.example")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("SKYPILOT_POD_MEMORY_GB_LIMIT", "5")

    url = harness.open()

    assert url == f"http://127.0.0.1:{harness.port}"
    assert httpx2.get(f"{url}/api/health", timeout=60).json()["version"] == "0.14.1"
    given = harness.interpreter.environment
    assert given["HOME"] == str(harness.server_dir.home)
    assert given["TZ"] == "UTC"
    assert given["SKYPILOT_DISABLE_USAGE_COLLECTION"] == "1"
    assert given["IS_SKYPILOT_SERVER"] == "true"
    assert given["AWS_PROFILE"] == "mine"
    assert given["SKYPILOT_POD_MEMORY_GB_LIMIT"] == "5", "settings of the user take precedence"
    assert not {"HOLDFAST_TOKEN", "SKYPILOT_API_SERVER_ENDPOINT"} & set(given)
    assert configuration(harness.server_dir.home)["admin_policy"] == "holdfast_gate.Gate"
    assert "starting SkyPilot 0.14.1" in harness.output


def test_server_is_detached_from_its_starter(harness: ServerDirHarness) -> None:
    harness.open()

    server = psutil.Process(harness.pid)

    assert os.getsid(server.pid) != os.getsid(0)
    assert server.pid not in [child.pid for child in psutil.Process().children(recursive=True)]
    assert server.cwd() == str(harness.server_dir.home)


def test_server_files_are_private_and_hide_the_policy_secret(harness: ServerDirHarness) -> None:
    harness.open()

    assert harness.server_dir.home.stat().st_mode & 0o777 == 0o700
    assert harness.server_dir.config.stat().st_mode & 0o777 == 0o600
    assert harness.gate_address.stat().st_mode & 0o777 == 0o600
    assert "secret" not in harness.server_dir.config.read_text()


def test_running_server_is_reused(harness: ServerDirHarness) -> None:
    harness.open()
    first = harness.pid

    again = harness.open()

    assert harness.pid == first
    assert again == f"http://127.0.0.1:{harness.port}"
    assert f"is already running, process {first}" in harness.output


def test_unspecified_port_reuses_that_of_the_running_server(
    harness: ServerDirHarness,
) -> None:
    url = harness.open()

    again = skypilot_server.open_server(
        harness.server_dir,
        python=harness.interpreter.python,
        port=None,
        gate_url=GATE,
        report=harness.messages.append,
    )

    assert again == url


def test_live_setting_does_not_restart_the_server(harness: ServerDirHarness) -> None:
    harness.open()
    first = harness.pid
    text = harness.server_dir.config.read_text()
    harness.server_dir.config.write_text(f"{text}aws: {{vpc_names: [mine]}}\n")

    harness.open()

    assert harness.pid == first
    assert configuration(harness.server_dir.home)["aws"] == {"vpc_names": ["mine"]}


def test_original_configuration_is_backed_up(harness: ServerDirHarness) -> None:
    harness.server_dir.config.parent.mkdir(parents=True)
    harness.server_dir.config.write_text("# mine\nadmin_policy: my.Policy\n")

    harness.open()

    kept = harness.server_dir.config.with_name("config.yaml.before-holdfast")
    assert kept.read_text() == "# mine\nadmin_policy: my.Policy\n"
    assert "admin_policy was my.Policy" in harness.output


def test_user_configuration_survives_our_changes(
    harness: ServerDirHarness,
) -> None:
    harness.server_dir.config.parent.mkdir(parents=True)
    harness.server_dir.config.write_text("# mine\n")
    harness.open()
    harness.server_dir.config.write_text("admin_policy: of.Somebody\n")

    harness.open()

    kept = harness.server_dir.config.with_name("config.yaml.before-holdfast")
    assert kept.read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("name", "make"),
    [(".sky/config.yaml", Path.mkdir), (".sky/holdfast-gate", Path.mkdir), (".config", Path.touch)],
)
def test_unusable_path_in_server_directory_is_named(
    harness: ServerDirHarness, name: str, make: Callable[[Path], None]
) -> None:
    """A directory instead of a file, and vice versa, also stops root, like a foreign owner."""
    (harness.user_home / ".config/gcloud").mkdir(parents=True)
    obstacle = harness.server_dir.home / name
    obstacle.parent.mkdir(parents=True)
    make(obstacle)

    with pytest.raises(StoreUnavailable, match="HOLDFAST_SKYPILOT_HOME") as failure:
        harness.open()

    assert str(obstacle) in failure.value.detail


def test_uncreatable_directory_fails_before_installation(
    harness: ServerDirHarness,
) -> None:
    unwritable = ServerDir(
        harness.interpreter.python / "home"
    )  # A directory cannot be created below a file.

    with pytest.raises(StoreUnavailable, match="Not a directory"):
        skypilot_server.install_if_missing(unwritable, None, harness.messages.append)

    assert harness.messages == []


def test_stop_ends_server_and_workers_but_not_job_controllers(
    harness: ServerDirHarness,
) -> None:
    harness.interpreter.play(leaves_worker=True)
    harness.open()
    server = psutil.Process(harness.pid)
    (worker,) = server.children()
    controller = harness.bystander("-msky.jobs.controller", HOME=str(harness.server_dir.home))

    ended = harness.stop()

    assert ended
    assert not is_alive(server)
    assert not is_alive(worker)
    assert controller.poll() is None
    assert f"kill {controller.pid}" in harness.output
    assert process.running_server(harness.server_dir) is None
    assert harness.stop() is False


def test_processes_of_a_killed_server_do_not_block_the_next(
    harness: ServerDirHarness,
) -> None:
    harness.interpreter.play(leaves_worker=True)
    harness.open()
    server = psutil.Process(harness.pid)
    (worker,) = server.children()
    server.send_signal(signal.SIGKILL)
    while is_alive(server):
        pass
    harness.interpreter.play()

    harness.open()

    assert not is_alive(worker)
    assert harness.pid != server.pid


@pytest.mark.parametrize(
    ("words", "older_s"),
    [
        ((), 0),
        (("-m", process.MODULE, "--port=1"), 0),
        (("-m", process.MODULE, "--port={port}"), 86_400),
    ],
    ids=["other program", "other port", "other start time"],
)
def test_stale_record_with_reused_pid_ends_no_process(
    harness: ServerDirHarness, words: tuple[str, ...], older_s: float
) -> None:
    harness.open()
    record = json.loads(harness.server_dir.record.read_text())
    harness.stop()
    bystander = harness.bystander(*(word.format(port=harness.port) for word in words))
    born = psutil.Process(bystander.pid).create_time() - older_s
    record |= {"pid": bystander.pid, "born": born, "session": os.getsid(bystander.pid)}
    harness.server_dir.record.write_text(json.dumps(record))

    ended = harness.stop()
    harness.open()

    assert ended is False
    assert bystander.poll() is None
    assert harness.pid != bystander.pid


@pytest.mark.parametrize("record", ["", "{}", "[1]", '{"pid": 1}', "not json"])
def test_unreadable_record_counts_as_no_server(harness: ServerDirHarness, record: str) -> None:
    harness.server_dir.home.mkdir()
    harness.server_dir.record.write_text(record)

    assert process.running_server(harness.server_dir) is None
    assert harness.open().endswith(str(harness.port))


def test_server_exit_at_startup_is_reported_with_its_log_tail(
    harness: ServerDirHarness,
) -> None:
    harness.interpreter.play(crashes=True)

    with pytest.raises(EngineNotStarted, match="exited at startup") as failure:
        harness.open()

    assert "no room on the stage" in failure.value.detail
    assert str(harness.server_dir.log) in failure.value.detail


def test_log_of_the_previous_start_is_kept(harness: ServerDirHarness) -> None:
    harness.interpreter.play(crashes=True)
    with pytest.raises(EngineNotStarted):
        harness.open()
    harness.interpreter.play()

    harness.open()

    assert "no room on the stage" in harness.server_dir.log.with_suffix(".log.1").read_text()
    assert "no room on the stage" not in harness.server_dir.log.read_text()


def test_port_of_another_process_is_reported_with_both_remedies(harness: ServerDirHarness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(AddressInUse, match="--skypilot-port") as failure:
            harness.open(port=port)

    assert f"HOLDFAST_SKYPILOT_URL=http://127.0.0.1:{port}" in failure.value.detail


@pytest.mark.parametrize(
    ("version", "sentence"),
    [(None, "has no SkyPilot"), ("0.13.2", "has SkyPilot 0.13.2, but this version")],
)
def test_missing_skypilot_is_reported_with_install_commands(
    harness: ServerDirHarness, version: str | None, sentence: str
) -> None:
    harness.interpreter.play(version=version)

    with pytest.raises(NotInstalled, match=sentence) as failure:
        harness.open()

    result = failure.value.detail
    assert "holdfast up --install" in result
    assert (
        f"-m venv {harness.server_dir.home}/venv && {harness.server_dir.home}/venv/bin/python"
        in result
    )
    assert "requirements-skypilot.lock" in result


def test_environment_without_skypilot_is_recognized(harness: ServerDirHarness) -> None:
    """SkyPilot is not installed here, and a directory without an environment has none either."""
    with pytest.raises(NotInstalled, match="not installed here"):
        skypilot_server.open_server(
            harness.server_dir,
            python=None,
            port=harness.port,
            gate_url=GATE,
            report=harness.messages.append,
        )


@pytest.mark.full
def test_failed_installation_names_the_failed_command(
    harness: ServerDirHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(NotInstalled, match="pip install --requirement") as failure:
        skypilot_server.install_if_missing(harness.server_dir, None, harness.messages.append)

    assert harness.server_dir.python.exists()
    assert str(harness.server_dir.python) in failure.value.detail
    assert "installing SkyPilot 0.14.1" in harness.output


def test_install_skips_a_configured_python_without_skypilot(harness: ServerDirHarness) -> None:
    harness.interpreter.play(version=None)

    with pytest.raises(NotInstalled, match="has no SkyPilot; install it there, or unset"):
        skypilot_server.install_if_missing(
            harness.server_dir, harness.interpreter.python, harness.messages.append
        )

    assert harness.messages == []
    assert not harness.server_dir.home.exists()


def test_existing_installation_is_not_repeated(harness: ServerDirHarness) -> None:
    skypilot_server.install_if_missing(
        harness.server_dir, harness.interpreter.python, harness.messages.append
    )

    assert harness.messages == []
    assert not harness.server_dir.home.exists()


def test_credentials_are_linked_and_not_copied(harness: ServerDirHarness) -> None:
    (harness.user_home / ".aws").mkdir()
    (harness.user_home / ".aws/credentials").write_text("[default]")
    (harness.user_home / ".config/gcloud").mkdir(parents=True)
    own = harness.server_dir.home / ".kube"
    own.mkdir(parents=True)

    harness.open()

    assert (harness.server_dir.home / ".aws").readlink() == harness.user_home / ".aws"
    assert (
        harness.server_dir.home / ".config/gcloud"
    ).readlink() == harness.user_home / ".config/gcloud"
    assert not own.is_symlink()
    assert "cloud credentials found by SkyPilot: AWS, GCP, Kubernetes" in harness.output


def test_removed_credentials_are_unlinked_from_the_server(harness: ServerDirHarness) -> None:
    (harness.user_home / ".aws").mkdir()
    harness.open()
    (harness.user_home / ".aws").rmdir()

    harness.open()

    assert not (harness.server_dir.home / ".aws").is_symlink()
    assert "cloud credentials found by SkyPilot: environment variables only" in harness.messages


def test_server_process_during_exec_is_still_found() -> None:
    """Regression: the process has no command line during exec, so that it counted as ended."""
    again = 'n=$1; shift; [ "$n" = 0 ] || exec sh -c "$0" "$0" $((n - 1)) "$@"; read nothing'
    words = ["sh", "-c", again, again, "300", "-m", process.MODULE, "--port=1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as started:
        child = psutil.Process(started.pid)
        server = process.SkyPilotServer(child.pid, child.create_time(), child.pid, 1, "")
        found = []
        while child.cmdline()[4:5] != ["0"]:
            found.append(server.process())
        child.kill()

    assert found
    assert all(found)
