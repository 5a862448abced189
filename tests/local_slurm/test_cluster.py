"""The local Slurm cluster behaves like a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from local_slurm import NotPossible, SlurmCluster, start_cluster
from local_slurm.handle import ROOT


def test_job_runs_on_all_nodes_and_writes_to_shared_storage(
    slurm: SlurmCluster,
) -> None:
    out = slurm.shared / "names"

    slurm.run(
        *("sbatch", "--wait", "--nodes=4", f"--chdir={slurm.shared}", f"--output={out}"),
        "--wrap=srun hostname",
    )

    assert sorted(out.read_text().split()) == ["n1", "n2", "n3", "n4"]


def test_nodes_share_only_the_shared_folder(slurm: SlurmCluster) -> None:
    (slurm.shared / "word").write_text("shared")

    slurm.on("n1", "touch", "/tmp/mine", "/etc/mine")

    assert slurm.on("n2", "cat", str(slurm.shared / "word")) == "shared"
    assert slurm.on("n2", "sh", "-c", "ls -d /tmp/mine /etc/mine 2>/dev/null || true") == ""
    assert not Path("/etc/mine").exists()


def test_power_cycled_node_returns_with_an_empty_disk(
    slurm: SlurmCluster,
) -> None:
    slurm.on("n4", "touch", "/tmp/mine")

    slurm.cut("n4")
    alive = "n4" in slurm.idle()  # Slurm has not detected it: the node ended without a message.
    slurm.boot("n4")

    assert alive
    assert slurm.on("n4", "sh", "-c", "ls -d /tmp/mine 2>/dev/null || true") == ""


def test_cluster_processes_end_when_their_starter_is_killed(slurm: SlurmCluster) -> None:
    code = "import local_slurm, time\nwith local_slurm.start_cluster(local_slurm.Plan(nodes=1)) as s: print(s.state, flush=True); time.sleep(600)"
    program = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    with program:
        assert program.stdout
        state = program.stdout.readline().strip()
        below = psutil.Process(program.pid).children(recursive=True)

        program.kill()
    _, left = psutil.wait_procs(below, timeout=120)

    assert state.startswith("/tmp/hfslurm-")
    assert len(below) > 5
    assert not left
    subprocess.run(["rm", "-r", state], check=True)


def test_unprivileged_start_states_that_root_is_needed() -> None:
    nobody = "import os, local_slurm; os.seteuid(65534)\nwith local_slurm.start_cluster(): pass"
    program = subprocess.run(
        [sys.executable, "-c", nobody],
        env={"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "NotPossible: a Slurm of the tests' own needs root" in program.stderr


def test_missing_program_is_named_with_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_slurm.handle.NEEDED", ("bash", "no-such-daemon"))

    with (
        pytest.raises(NotPossible, match=r"no no-such-daemon\); on Debian: apt-get"),
        start_cluster(),
    ):
        pass
