"""The Slurm launcher over ssh: against Debian's sshd, and a fake ssh for its failures."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from contract.launcher_backends import do, is_ended
from contract.slurm_launcher import SlurmBackend
from holdfast.domain.events import Outcome
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.slurm import Transport, ssh
from local_slurm import SlurmCluster
from support.requirements import skip_or_fail
from worker.support.run_driver import is_gone, wait_until

SESSIONS = 10
"""Sessions per connection that sshd allows by default."""
FAKE_SSH = """#!/bin/bash
# Runs what a login node would, as sshd does: the words after the host are one text for a shell.
printf '%s\\n' "$*" >> "$0.said"
[[ -e $0.down ]] && { echo "ssh: connect to host login port 22: Connection refused" >&2; exit 255; }
while [[ $1 = -o ]]; do shift 2; done
[[ $1 = me@login && $2 = -- ]] || exit 2
# Before 8.5 the kept connection holds the stderr of ssh open.
[[ ! -e $0.keeps ]] || { (sleep 200; : > "$0.ended") > /dev/null & echo $! > "$0.kept"; }
exec bash -c "$3"
"""


@pytest.fixture
def login(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Transport]:
    """Transport to the login node; its connection is closed at the end of the test."""
    if not slurm.ssh.exists():
        skip_or_fail("sshd is not installed; on Debian: apt-get install openssh-server")
    # Longer than the path of a Unix socket may be, as the path of a home directory can be.
    there = ssh("login", tmp_path / ("deep" * 20), program=str(slurm.ssh))
    yield there
    _control_kept_connection(there, "exit")


def _control_kept_connection(login: Transport, word: str) -> str:
    """The response of the kept connection to a control command; empty without a connection."""
    *ssh_command, host, _ = login.prefix
    output = subprocess.run(
        [*ssh_command, "-O", word, host],
        cwd=login.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return output.stderr if output.returncode == 0 else ""


def test_a_launch_goes_from_submit_to_its_log(slurm: SlurmCluster, login: Transport) -> None:
    cluster = SlurmBackend(slurm, slurm.new_folder(), transport=login)
    run = "printf '\\0\\377 %s' \"$WORD\""
    awkward = """it's "quoted" $(not run) `nor this` \\ * \n two"""

    do(cluster.launcher.submit(cluster.script_launch("job-1", run, envs={"WORD": awkward})))
    seen = cluster.until("job-1", is_ended)
    (log,) = do(cluster.launcher.logs("job-1"))

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result
    printed = cluster.launcher.read_log("job-1", log, 0, 10_000)
    assert b"\n\0\xff " + awkward.encode() in printed


def test_arguments_streams_and_exit_code_pass_unchanged(login: Transport) -> None:
    awkward = """it's "quoted" $(not run) `nor this` \\ * ! \n two"""
    given = bytes(range(256)) * 4096

    reply = login.bash('printf "%s" "$1"; cat; echo beside >&2; exit 3', awkward, given=given)

    assert (reply.code, reply.err) == (3, "beside")
    assert reply.out == awkward.encode() + given


def test_more_calls_than_sessions_per_connection_succeed(login: Transport) -> None:
    numbers = [str(number) for number in range(SESSIONS + 5)]
    login.bash("true")

    with ThreadPoolExecutor(len(numbers)) as threads:
        replies = list(threads.map(lambda word: login.bash('sleep 1; echo "$1"', word), numbers))

    assert [reply.out.decode().strip() for reply in replies] == numbers


def test_dead_shared_connection_is_replaced(login: Transport) -> None:
    """The socket file remains, as after a crash."""
    login.bash("true")
    found = re.search(r"pid=(\d+)", _control_kept_connection(login, "check"))
    assert found, "none is kept"

    kept = psutil.Process(int(found[1]))
    kept.kill()
    wait_until(lambda: is_gone(kept))  # Until then, its socket accepts connections.
    reply = login.bash("hostname")

    assert reply.out == b"login\n"
    assert "pid=" in _control_kept_connection(login, "check")


def test_rejected_login_shows_the_message_of_ssh(slurm: SlurmCluster, login: Transport) -> None:
    assert login.folder
    stranger = ssh("nobody@login", login.folder, program=str(slurm.ssh))

    with pytest.raises(
        LauncherUnreachable, match=r"cannot reach the login node nobody@login: .*Permission denied"
    ):
        stranger.bash("true")


# Behavior of ssh against other servers


@pytest.fixture
def fake_ssh(tmp_path: Path) -> Path:
    program = tmp_path / "ssh"
    program.write_text(FAKE_SSH)
    program.chmod(0o755)
    return program


def test_ssh_needs_no_prompt_and_passes_arguments_verbatim(fake_ssh: Path, tmp_path: Path) -> None:
    there = ssh("me@login", tmp_path / "sockets", program=str(fake_ssh))
    awkward = """it's "quoted" $(not run) `nor this` \\ * \n two"""

    reply = there.bash('printf "%s" "$1"; cat; exit 3', awkward, given=b"input")

    assert (reply.code, reply.out.decode()) == (3, awkward + "input")
    assert "BatchMode=yes" in Path(f"{fake_ssh}.said").read_text()
    assert "ControlMaster=auto" in Path(f"{fake_ssh}.said").read_text()


def test_call_returns_without_waiting_for_a_kept_connection(fake_ssh: Path, tmp_path: Path) -> None:
    Path(f"{fake_ssh}.keeps").touch()
    there = ssh("me@login", tmp_path / "sockets", program=str(fake_ssh))

    reply = there.bash("echo beside >&2")

    kept = psutil.Process(int(Path(f"{fake_ssh}.kept").read_text()))
    # The shell is killed first, or it would run its last command.
    for process in (kept, *kept.children()):
        process.kill()
    assert (reply.code, reply.err) == (0, "beside")
    assert not Path(f"{fake_ssh}.ended").exists(), "we waited for its end"


def test_unreachable_login_node_is_named(fake_ssh: Path, tmp_path: Path) -> None:
    Path(f"{fake_ssh}.down").touch()
    there = ssh("me@login", tmp_path, program=str(fake_ssh))

    with pytest.raises(
        LauncherUnreachable, match=r"cannot reach the login node me@login: .*refused"
    ):
        there.bash("true")
