"""SkyPilot's server as a process: started once, reused, known again, and ended without touching anybody else."""

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
from skystage import GATE, Stage, lives
from understudy import configuration


def test_a_server_is_started_with_a_home_a_clock_and_a_configuration_of_its_own(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_secret")
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", "http://somewhere.example")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("SKYPILOT_POD_MEMORY_GB_LIMIT", "5")

    url = stage.open()

    assert url == f"http://127.0.0.1:{stage.port}"
    assert httpx2.get(f"{url}/api/health").json()["version"] == "0.14.1"
    given = stage.understudy.environment
    assert given["HOME"] == str(stage.place.home)
    assert given["TZ"] == "UTC"
    assert given["SKYPILOT_DISABLE_USAGE_COLLECTION"] == "1"
    assert given["IS_SKYPILOT_SERVER"] == "true"
    assert given["AWS_PROFILE"] == "mine"
    assert given["SKYPILOT_POD_MEMORY_GB_LIMIT"] == "5", "what a person says holds"
    assert not {"HOLDFAST_TOKEN", "SKYPILOT_API_SERVER_ENDPOINT"} & set(given)
    assert configuration(stage.place.home)["admin_policy"] == "holdfast_gate.Gate"
    assert "starting SkyPilot 0.14.1" in stage.told


def test_a_server_outlives_whoever_started_it(stage: Stage) -> None:
    stage.open()

    server = psutil.Process(stage.pid)

    assert os.getsid(server.pid) != os.getsid(0)
    assert server.pid not in [child.pid for child in psutil.Process().children(recursive=True)]
    assert server.cwd() == str(stage.place.home)


def test_what_leads_to_keys_and_holds_a_secret_is_private(stage: Stage) -> None:
    stage.open()

    assert stage.place.home.stat().st_mode & 0o777 == 0o700
    assert stage.place.config.stat().st_mode & 0o777 == 0o600
    assert stage.gate_address.stat().st_mode & 0o777 == 0o600
    assert "secret" not in stage.place.config.read_text()


def test_a_server_that_runs_is_used_again(stage: Stage) -> None:
    stage.open()
    first = stage.pid

    again = stage.open()

    assert stage.pid == first
    assert again == f"http://127.0.0.1:{stage.port}"
    assert f"runs already, process {first}" in stage.told


def test_without_a_wish_the_port_stays_that_of_the_server_that_runs(stage: Stage) -> None:
    url = stage.open()

    again = skypilot_server.open_server(
        stage.place,
        python=stage.understudy.python,
        port=None,
        gate_url=GATE,
        tell=stage.said.append,
    )

    assert again == url


def test_a_change_that_is_read_live_leaves_the_server_alone(stage: Stage) -> None:
    stage.open()
    first = stage.pid
    text = stage.place.config.read_text()
    stage.place.config.write_text(f"{text}aws: {{vpc_names: [mine]}}\n")

    stage.open()

    assert stage.pid == first
    assert configuration(stage.place.home)["aws"] == {"vpc_names": ["mine"]}


def test_what_a_person_had_written_is_kept_beside(stage: Stage) -> None:
    stage.place.config.parent.mkdir(parents=True)
    stage.place.config.write_text("# mine\nadmin_policy: my.Policy\n")

    stage.open()

    kept = stage.place.config.with_name("config.yaml.before-holdfast")
    assert kept.read_text() == "# mine\nadmin_policy: my.Policy\n"
    assert "admin_policy was my.Policy" in stage.told


def test_what_a_person_had_written_is_still_there_after_the_next_change_of_ours(
    stage: Stage,
) -> None:
    stage.place.config.parent.mkdir(parents=True)
    stage.place.config.write_text("# mine\n")
    stage.open()
    stage.place.config.write_text("admin_policy: of.Somebody\n")

    stage.open()

    kept = stage.place.config.with_name("config.yaml.before-holdfast")
    assert kept.read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("name", "make"),
    [(".sky/config.yaml", Path.mkdir), (".sky/holdfast-gate", Path.mkdir), (".config", Path.touch)],
)
def test_what_cannot_be_read_or_written_in_its_folder_is_told_and_named(
    stage: Stage, name: str, make: Callable[[Path], None]
) -> None:
    """As where it is somebody else's: a folder in the place of a file, and the reverse, stop root as well."""
    (stage.person / ".config/gcloud").mkdir(parents=True)
    obstacle = stage.place.home / name
    obstacle.parent.mkdir(parents=True)
    make(obstacle)

    with pytest.raises(StoreUnavailable, match="HOLDFAST_SKYPILOT_HOME") as failure:
        stage.open()

    assert str(obstacle) in failure.value.detail


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_installed(stage: Stage) -> None:
    nowhere = ServerDir(stage.understudy.python / "home")  # Below a file there is no folder.

    with pytest.raises(StoreUnavailable, match="Not a directory"):
        skypilot_server.install_if_missing(nowhere, None, stage.said.append)

    assert stage.said == []


def test_stop_ends_the_server_and_its_workers_and_says_what_goes_on(stage: Stage) -> None:
    stage.understudy.play(leaves_worker=True)
    stage.open()
    server = psutil.Process(stage.pid)
    (worker,) = server.children()
    controller = stage.bystander("-msky.jobs.controller", HOME=str(stage.place.home))

    ended = stage.stop()

    assert ended
    assert not lives(server)
    assert not lives(worker)
    assert controller.poll() is None
    assert f"kill {controller.pid}" in stage.told
    assert process.find(stage.place) is None
    assert stage.stop() is False


def test_workers_of_a_server_that_was_killed_do_not_stand_in_the_way_of_the_next(
    stage: Stage,
) -> None:
    stage.understudy.play(leaves_worker=True)
    stage.open()
    server = psutil.Process(stage.pid)
    (worker,) = server.children()
    server.send_signal(signal.SIGKILL)
    while lives(server):
        pass
    stage.understudy.play()

    stage.open()

    assert not lives(worker)
    assert stage.pid != server.pid


@pytest.mark.parametrize(
    ("words", "older_s"),
    [
        ((), 0),
        (("-m", process.MODULE, "--port=1"), 0),
        (("-m", process.MODULE, "--port={port}"), 86_400),
    ],
    ids=["other program", "other port", "other birth"],
)
def test_a_stale_record_whose_number_belongs_to_somebody_else_ends_nobody(
    stage: Stage, words: tuple[str, ...], older_s: float
) -> None:
    stage.open()
    record = json.loads(stage.place.record.read_text())
    stage.stop()
    bystander = stage.bystander(*(word.format(port=stage.port) for word in words))
    born = psutil.Process(bystander.pid).create_time() - older_s
    record |= {"pid": bystander.pid, "born": born, "session": os.getsid(bystander.pid)}
    stage.place.record.write_text(json.dumps(record))

    ended = stage.stop()
    stage.open()

    assert ended is False
    assert bystander.poll() is None
    assert stage.pid != bystander.pid


@pytest.mark.parametrize("record", ["", "{}", "[1]", '{"pid": 1}', "not json"])
def test_a_record_that_cannot_be_read_is_no_server(stage: Stage, record: str) -> None:
    stage.place.home.mkdir()
    stage.place.record.write_text(record)

    assert process.find(stage.place) is None
    assert stage.open().endswith(str(stage.port))


def test_a_server_that_ends_at_its_start_is_told_with_the_end_of_its_log(stage: Stage) -> None:
    stage.understudy.play(crashes=True)

    with pytest.raises(EngineNotStarted, match="ended at its start") as failure:
        stage.open()

    assert "no room on the stage" in failure.value.detail
    assert str(stage.place.log) in failure.value.detail


def test_a_log_of_the_start_before_is_kept(stage: Stage) -> None:
    stage.understudy.play(crashes=True)
    with pytest.raises(EngineNotStarted):
        stage.open()
    stage.understudy.play()

    stage.open()

    assert "no room on the stage" in stage.place.log.with_suffix(".log.1").read_text()
    assert "no room on the stage" not in stage.place.log.read_text()


def test_a_port_of_somebody_else_is_told_with_both_ways_out(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(AddressInUse, match="--skypilot-port") as failure:
            stage.open(port=port)

    assert f"HOLDFAST_SKYPILOT_URL=http://127.0.0.1:{port}" in failure.value.detail


@pytest.mark.parametrize(
    ("version", "sentence"),
    [(None, "has no SkyPilot"), ("0.13.2", "has SkyPilot 0.13.2, and this version")],
)
def test_without_skypilot_the_way_to_it_is_told(
    stage: Stage, version: str | None, sentence: str
) -> None:
    stage.understudy.play(version=version)

    with pytest.raises(NotInstalled, match=sentence) as failure:
        stage.open()

    told = failure.value.detail
    assert "holdfast up --install" in told
    assert f"-m venv {stage.place.home}/venv && {stage.place.home}/venv/bin/python" in told
    assert "requirements-skypilot.lock" in told


def test_this_environment_is_not_asked_for_more_than_it_has(stage: Stage) -> None:
    """Here SkyPilot is not installed, and a folder without an environment has none either."""
    with pytest.raises(NotInstalled, match="not installed here"):
        skypilot_server.open_server(
            stage.place, python=None, port=stage.port, gate_url=GATE, tell=stage.said.append
        )


def test_an_installation_that_fails_is_told_with_the_command_that_failed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(NotInstalled, match="pip install --requirement") as failure:
        skypilot_server.install_if_missing(stage.place, None, stage.said.append)

    assert stage.place.python.exists()
    assert str(stage.place.python) in failure.value.detail
    assert "installing SkyPilot 0.14.1" in stage.told


def test_nothing_is_installed_where_nobody_would_look_for_it(stage: Stage) -> None:
    stage.understudy.play(version=None)

    with pytest.raises(NotInstalled, match="has no SkyPilot; install it there, or leave that"):
        skypilot_server.install_if_missing(stage.place, stage.understudy.python, stage.said.append)

    assert stage.said == []
    assert not stage.place.home.exists()


def test_what_is_installed_is_not_installed_again(stage: Stage) -> None:
    skypilot_server.install_if_missing(stage.place, stage.understudy.python, stage.said.append)

    assert stage.said == []
    assert not stage.place.home.exists()


def test_keys_are_linked_and_never_copied(stage: Stage) -> None:
    (stage.person / ".aws").mkdir()
    (stage.person / ".aws/credentials").write_text("[default]")
    (stage.person / ".config/gcloud").mkdir(parents=True)
    own = stage.place.home / ".kube"
    own.mkdir(parents=True)

    stage.open()

    assert (stage.place.home / ".aws").readlink() == stage.person / ".aws"
    assert (stage.place.home / ".config/gcloud").readlink() == stage.person / ".config/gcloud"
    assert not own.is_symlink()
    assert "keys that SkyPilot sees: AWS, GCP, Kubernetes" in stage.told


def test_keys_that_are_gone_are_gone_there_too(stage: Stage) -> None:
    (stage.person / ".aws").mkdir()
    stage.open()
    (stage.person / ".aws").rmdir()

    stage.open()

    assert not (stage.place.home / ".aws").is_symlink()
    assert "keys that SkyPilot sees: none but variables of yours" in stage.said


def test_a_server_that_changes_its_program_is_not_taken_for_one_that_ended() -> None:
    """It has no words at all at that moment, and a start that looked then said that SkyPilot had ended."""
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
