"""The environment of a program on a node of the local launcher."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from contract.launcher_backends import LocalBackend, do, eventually, is_ended
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LaunchRefused

AWKWARD = {
    "QUOTES": """it's "quoted" `and` $(more) $HOME \\n""",
    "LINES": "one\ntwo\r\n\tthree ",
    "SIGNS": "übergröße 漢字 🙂 * ? [a-z] ~ ! # & | ; < >",
    "EMPTY": "",
}


def environment_of(
    machine: LocalBackend, key: str, *, attempt: int = 1, node: int = 0
) -> dict[str, str]:
    """Output of `env -0` on a node."""
    text = machine.folder(key).node(attempt, node).log.read_bytes().decode()
    return dict(pair.split("=", 1) for pair in text.split("\0") if pair)


def test_variables_arrive_byte_for_byte(machine: LocalBackend) -> None:
    do(machine.launcher.submit(machine.script_launch("job-1", "env -0", envs=AWKWARD)))
    machine.until("job-1", is_ended)

    found = environment_of(machine, "job-1")

    assert {name: found[name] for name in AWKWARD} == AWKWARD


def test_scripts_of_any_length_arrive_byte_for_byte(machine: LocalBackend) -> None:
    text = "\n".join(f"""it's "{n}" $(not run) `nor this` \\""" for n in range(5000))
    run = f"cat <<'END'\n{text}\nEND\n"
    assert len(run) > 128 * 1024, "longer than one argument can be"

    do(machine.launcher.submit(machine.script_launch("job-1", run)))
    machine.until("job-1", is_ended)

    assert machine.log("job-1") == text + "\n"


def test_scripts_run_without_shell_options(machine: LocalBackend) -> None:
    """No -e, no pipefail: the exit code is the last command's, as with SkyPilot."""
    do(
        machine.launcher.submit(
            machine.script_launch("job-1", "false; false | true; echo on", setup="false; true")
        )
    )
    seen = machine.until("job-1", is_ended)

    assert seen.result
    assert seen.result.exit_code == 0
    assert machine.log("job-1") == "on\n"


def test_a_failed_setup_ends_the_launch_before_run(machine: LocalBackend) -> None:
    script_launch = machine.script_launch(
        "job-1", "echo never", setup="echo no such package; exit 4", max_failures=3
    )
    do(machine.launcher.submit(script_launch))
    seen = machine.until("job-1", is_ended)

    assert seen.result
    assert seen.result.detail == "node 0 exited with 4: no such package"
    assert machine.log("job-1") == "no such package\n"


def test_every_node_has_skypilots_environment_and_the_workers(machine: LocalBackend) -> None:
    token = {"HOLDFAST_TOKEN": "secret", "HOLDFAST_STORE": "file:///tmp/store"}
    script_launch = replace(
        machine.script_launch("job-1", "env -0", nodes=2), env=token, first_attempt=4
    )

    do(machine.launcher.submit(script_launch))
    machine.until("job-1", is_ended)
    folder = machine.folder("job-1")
    found = environment_of(machine, "job-1", attempt=4, node=1)

    assert found["SKYPILOT_NUM_NODES"] == "2"
    assert found["SKYPILOT_NODE_RANK"] == "1"
    assert found["SKYPILOT_NODE_IPS"] == "127.0.0.1\n127.0.0.1"
    assert found["SKYPILOT_NUM_GPUS_PER_NODE"].isdigit()
    assert found["HOLDFAST_ATTEMPT"] == found["HOLDFAST_EPOCH"] == "4"
    assert found["HOLDFAST_RUN_DIR"] == str(folder.node(4, 1).run)
    assert found["HOLDFAST_SPOOL"] == str(folder.spool)
    assert int(found["HOLDFAST_MASTER_PORT"]) > 1023
    assert found["HOLDFAST_TOKEN"] == "secret"
    assert found["GLOO_SOCKET_IFNAME"] == "lo"
    assert str(Path(sys.executable).parent) in found["PATH"].split(os.pathsep)


def test_task_sets_its_gpus_and_service_settings_are_withheld(
    machine: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", "/the/services/own")
    monkeypatch.setenv("AWS_PROFILE", "research")
    envs = {"SKYPILOT_NUM_GPUS_PER_NODE": 2, "FLAG": None}

    do(machine.launcher.submit(machine.script_launch("job-1", "env -0", envs=envs)))
    machine.until("job-1", is_ended)
    found = environment_of(machine, "job-1")

    assert found["SKYPILOT_NUM_GPUS_PER_NODE"] == "2"
    assert found["FLAG"] == ""
    assert found["AWS_PROFILE"] == "research"
    assert "HOLDFAST_HOME" not in found


def test_task_id_is_the_same_in_every_attempt(machine: LocalBackend) -> None:
    run = "echo $SKYPILOT_TASK_ID; exec sleep 1000"
    do(machine.launcher.submit(machine.script_launch("job-1", run)))
    eventually(lambda: machine.log("job-1"))

    do(machine.launcher.preempt("job-1", node=None, notice_s=None))
    second = eventually(lambda: machine.log("job-1", attempt=2))

    assert second == machine.log("job-1") != ""


def test_launch_folder_is_accessible_to_its_owner_only(machine: LocalBackend) -> None:
    do(machine.launcher.submit(machine.launch("job-1")))

    assert stat.S_IMODE(machine.folder("job-1").path.stat().st_mode) == 0o700


def test_secrets_reach_every_attempt_and_no_file(machine: LocalBackend) -> None:
    run = 'echo "${#KEY} ${#HOLDFAST_TOKEN}"; exec sleep 1000'
    script_launch = replace(
        machine.script_launch("job-1", run),
        secrets={"KEY": "CANARY-hush"},
        env={"HOLDFAST_TOKEN": "CANARY-token"},
    )
    do(machine.launcher.submit(script_launch))
    eventually(lambda: machine.log("job-1"))

    do(machine.launcher.preempt("job-1", node=None, notice_s=None))
    second = eventually(lambda: machine.log("job-1", attempt=2))

    files = [path for path in machine.home.rglob("*") if path.is_file()]
    assert second == "11 12\n"
    assert files
    assert not [path for path in files if b"CANARY" in path.read_bytes()]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"workdir": "/no/such/place"}, "not a directory on this machine"),
        ({"workdir": "code"}, "relative"),
        ({"workdir": __file__}, "not a directory"),
        ({"workdir": {"url": "https://example.com"}}, "must be a directory"),
        ({"num_nodes": 0}, "at least 1"),
        ({"run": ["a", "list"]}, "text of a script"),
        ({"envs": {"A": "a\0b"}}, "cannot be set"),
        ({"run": "echo \udc00"}, "half of a surrogate pair"),
    ],
)
def test_invalid_launch_is_refused_with_a_reason(
    machine: LocalBackend, task: dict[str, object], message: str
) -> None:
    launch = machine.script_launch("job-1", "true")

    with pytest.raises(LaunchRefused, match=message):
        do(machine.launcher.submit(replace(launch, task={**launch.task, **task})))

    assert not machine.folder("job-1").path.exists()


def test_resubmit_of_a_running_launch_ignores_missing_files(
    machine: LocalBackend, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    script_launch = machine.script_launch("job-1", "exec sleep 1000", workdir=str(source))
    do(machine.launcher.submit(script_launch))
    source.rmdir()

    do(machine.launcher.submit(script_launch))

    assert do(machine.launcher.observe("job-1")).status in {LaunchStatus.WAITING, LaunchStatus.UP}
