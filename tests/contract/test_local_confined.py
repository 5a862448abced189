"""Jobs of users on the service's machine: separate accounts, and no access to the service."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from contract.launcher_backends import NO_PREEMPTIONS, do, eventually
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LaunchRefused
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.local import LocalLauncher
from holdfast.launchers.local.cgroup import ControlGroups
from holdfast.launchers.local.sandbox import FIRST_UID, Sandboxes
from holdfast.ports import Launch, LogSource
from support.requirements import skip_or_fail

pytestmark = pytest.mark.needs_root
SECRET = "the-secret-of-the-service"


class ConfinedJobs:
    """A launcher with a secret in its home and confinement accounts for the jobs of users."""

    def __init__(self, folder: Path, groups: ControlGroups = ControlGroups(None, "a test")) -> None:
        self.folder = folder
        self.home = folder / "home"
        folder.mkdir(exist_ok=True, mode=0o711)
        self.home.mkdir(mode=0o700)
        self.secret = self.home / "secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o644)  # Only the permissions of the folder protect it.
        # Memory may belong to cgroup v1 here; a group also works without limits.
        memory_bytes = None if groups.folder else 2**30
        self.sandboxes = Sandboxes(
            folder=folder / "nodes", memory_bytes=memory_bytes, processes=64, groups=groups
        )
        self.launcher = LocalLauncher(self.home, NO_PREEMPTIONS, sandboxes=self.sandboxes)

    def run(
        self, job: str, script: str, *, is_confined: bool = True, workdir: str | None = None
    ) -> tuple[Observation, str]:
        """Outcome and output of a job."""
        launch = self.launch(job, script, is_confined=is_confined, workdir=workdir)
        do(self.launcher.submit(launch))

        def ended() -> Observation | None:
            seen = do(self.launcher.observe(launch.key))
            return seen if seen.status is LaunchStatus.ENDED else None

        seen = eventually(ended)
        assert seen
        return seen, self.log(job)

    def launch(
        self, job: str, script: str, *, is_confined: bool = True, workdir: str | None = None
    ) -> Launch:
        """A launch of a script."""
        return Launch(
            key=f"{job}-1",
            job_id=job,
            first_attempt=1,
            task={"run": script, **({"workdir": workdir} if workdir else {})},
            max_failures=1,
            folders=Folders(self.home, (str(self.folder / "allowed"),), is_confined=is_confined),
        )

    def log(self, job: str, rank: int | None = None) -> str:
        source = LogSource(attempt=1, node=0, rank=rank, size_bytes=0)
        return self.launcher.read_log(f"{job}-1", source, 0, 1 << 20).decode()


@pytest.fixture
def confined() -> Iterator[ConfinedJobs]:
    """A launcher directly below /tmp: other accounts cannot enter the folders of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-confined-"))
    folder.chmod(0o711)
    yield ConfinedJobs(folder)
    shutil.rmtree(folder)


def test_a_confined_job_has_an_account_and_no_secret(
    confined: ConfinedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-administrators-key")
    monkeypatch.setenv("POSTGRES_PASSWORD", "the-databases-password")
    script = f"""
        id -u; id -G; umask; pwd; echo $HOME; env; ulimit -u; ulimit -d
        cat {confined.secret}; ls {confined.home}; cat /proc/{os.getpid()}/environ | tr '\\0' '\\n'; kill -0 {os.getpid()}
        for pid in $(ls /proc | grep '^[0-9]'); do grep -az AWS_SECRET /proc/$pid/environ; done 2>/dev/null
        touch $HOME/kept $TMPDIR/kept $HOLDFAST_RUN_DIR/kept $HOLDFAST_SPOOL/kept kept && echo wrote
        grep NoNewPrivs /proc/self/status
    """

    seen, printed = confined.run("job1", script)

    assert seen.result
    assert seen.result.outcome == "succeeded", printed
    lines = printed.splitlines()
    assert int(lines[0]) >= FIRST_UID
    assert lines[1] == lines[0], "no other groups"
    assert lines[2] == "0077"
    assert all(line.startswith(str(confined.folder / "nodes")) for line in lines[3:5])
    assert "wrote" in lines
    assert "NoNewPrivs:\t1" in printed
    assert {"64", f"{2**30 // 1024}"} <= set(lines)
    for secret in (SECRET, "administrators-key", "databases-password"):
        assert secret not in printed


def test_jobs_of_users_do_not_reach_each_other(confined: ConfinedJobs) -> None:
    _, first = confined.run(
        "job1", "echo mine > $HOME/file; chmod 644 $HOME/file; id -u; echo $HOME"
    )
    account, home = first.splitlines()
    node = Path(home).parent

    tries = (
        f"cat {home}/file",
        f"cat {node}/run.sh",
        f"cat {node}/node.log",
        f"ls {home}",
        f"ls {confined.folder}/nodes",
    )
    _, second = confined.run("job2", "id -u;" + ";".join(f"{one} && echo reached" for one in tries))

    assert second.splitlines()[0] != account
    assert second.count("Permission denied") == len(tries)
    assert "reached" not in second


def test_service_does_not_follow_links_of_a_job(confined: ConfinedJobs) -> None:
    script = f"""
        ln -s {confined.secret} $HOLDFAST_RUN_DIR/ranks/rank-0.log
        ln -s {confined.secret} $HOLDFAST_RUN_DIR/left.json
        mkdir $HOLDFAST_RUN_DIR/elsewhere
    """

    confined.run("job1", script)
    confined.run(
        "job2", f"rmdir $HOLDFAST_RUN_DIR/ranks; ln -s {confined.home} $HOLDFAST_RUN_DIR/ranks"
    )

    assert confined.log("job1", rank=0) == ""
    assert confined.log("job2", rank=0) == ""
    assert all(SECRET not in str(log) for log in do(confined.launcher.logs("job1-1")))


def test_malformed_exit_report_does_not_end_the_supervisor(confined: ConfinedJobs) -> None:
    script = "head -c 1000000 /dev/zero | tr '\\0' '[' > $HOLDFAST_RUN_DIR/left.json; exit 3"

    seen, _ = confined.run("job1", script)

    assert seen.result
    assert (seen.result.outcome, seen.result.exit_code) == ("failed", 3)


def test_confined_job_gets_no_folder_of_the_service(confined: ConfinedJobs) -> None:
    allowed = confined.folder / "allowed"
    (allowed / "mine").mkdir(parents=True)
    (allowed / "mine" / "link").symlink_to(confined.secret)
    (allowed / "mine" / "file").write_text("mine")
    (allowed / "out").symlink_to(confined.home)

    for number, workdir in enumerate((confined.home, confined.folder, allowed / "out", "/etc")):
        with pytest.raises(LaunchRefused, match=r"service.s own directory|HOLDFAST_FOLDERS"):
            confined.run(f"bad{number}", "true", workdir=str(workdir))
    _, printed = confined.run("good", "cat file link; ls -l link", workdir=str(allowed / "mine"))

    assert "mine" in printed
    assert SECRET not in printed


@pytest.fixture
def groups() -> Iterator[ControlGroups]:
    """A parent folder for control groups, on this machine's cgroup v2."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [Path(line.split()[4]) for line in lines if " - cgroup2 " in line]
    if not mounts or not os.access(mounts[0], os.W_OK):
        skip_or_fail(
            "cgroup v2 cannot be written here; run the tests where root may make control groups"
        )
    folder = mounts[0] / f"holdfast-test-{os.getpid()}"
    folder.mkdir()
    yield ControlGroups(folder)
    folder.rmdir()


def test_job_runs_in_a_control_group_that_is_removed(
    confined: ConfinedJobs, groups: ControlGroups
) -> None:
    assert groups.folder
    confined = ConfinedJobs(confined.folder / "grouped", groups)

    seen, printed = confined.run("job1", "cat /proc/self/cgroup; id -u; umask; ulimit -u")

    assert seen.result
    assert seen.result.outcome == "succeeded", printed
    assert f"0::/{groups.folder.name}/job1-1" in printed
    assert {"0077", "64"} <= set(printed.split())
    assert int(printed.split()[-3]) >= FIRST_UID
    assert not [*groups.folder.glob("*/")]


def test_process_without_environment_ends_with_its_cgroup(
    confined: ConfinedJobs, groups: ControlGroups
) -> None:
    """Supervisor and guard are killed at once, and the process has no marker to be found by."""
    assert groups.folder
    confined = ConfinedJobs(confined.folder / "grouped", groups)
    launch = confined.launch("job1", "env -i setsid sleep 1000 & echo $! > $HOME/stray; wait")
    do(confined.launcher.submit(launch))
    stray = confined.folder / "nodes" / "job1-1" / "1" / "node-0" / "home" / "stray"
    pid = int(eventually(lambda: stray.exists() and stray.read_text()))
    guard = psutil.Process(pid).parents()[1]
    supervisor = guard.parent()
    assert supervisor

    supervisor.suspend()
    guard.kill()
    supervisor.kill()
    eventually(lambda: _has_ended(confined, "job1-1"))

    assert not [*groups.folder.glob("*/")], "a group that can be removed is empty"


def _has_ended(confined: ConfinedJobs, key: str) -> bool:
    return do(confined.launcher.observe(key)).status is not LaunchStatus.UP


def test_the_owners_job_has_the_rights_of_the_service(confined: ConfinedJobs) -> None:
    _, printed = confined.run("job1", f"id -u; cat {confined.secret}", is_confined=False)

    assert printed.split() == [str(os.getuid()), SECRET]


def test_launcher_without_accounts_refuses_confined_jobs(confined: ConfinedJobs) -> None:
    confined.launcher = LocalLauncher(confined.home, NO_PREEMPTIONS)

    with pytest.raises(LaunchRefused, match="does not run users' jobs"):
        confined.run("job1", "true")
