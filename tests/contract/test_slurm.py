"""Jobs on a real Slurm: their environment, requeues, and reboot and loss of nodes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from contract.launcher_backends import ProgramKind, do, eventually, is_ended, is_up
from contract.slurm_launcher import PATIENCE_S, PYTHON, SlurmBackend
from contract.test_local_environment import AWKWARD
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import LaunchStatus, Observation
from holdfast.errors import LaunchRefused
from holdfast.launchers.slurm import local
from local_slurm import SlurmCluster

OURS = re.compile(r"\d\d:\d\d:\d\d (\w+): (.*)")
"""A log line of the batch script, not of the program."""


@pytest.fixture
def cluster(slurm: SlurmCluster) -> SlurmBackend:
    return SlurmBackend(slurm, slurm.new_folder())


def phase_lines(text: str) -> list[tuple[str, str]]:
    """Phase and message of each line that the batch script logs."""
    return [(match[1], match[2]) for line in text.splitlines() if (match := OURS.fullmatch(line))]


def printed(text: str) -> str:
    """Output of the program itself."""
    return "".join(line for line in text.splitlines(keepends=True) if not OURS.match(line))


def environment(text: str) -> dict[str, str]:
    pairs = printed(text).rstrip("\n").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def ended(cluster: SlurmBackend, key: str = "job-1") -> Observation:
    return cluster.until(key, is_ended)


def test_every_node_has_skypilots_environment_and_the_workers(cluster: SlurmBackend) -> None:
    secrets = {"KEY": "CANARY-hush", **AWKWARD}
    script_launch = cluster.script_launch(
        "job-1", "env -0", nodes=2, resources={"accelerators": "A100:2"}
    )
    given = {"HOLDFAST_TOKEN": "CANARY-token", "HOLDFAST_JOB": "job"}

    do(cluster.launcher.submit(replace(script_launch, first_attempt=4, env=given, secrets=secrets)))
    envs = cluster.folder("job-1") / "scripts" / "ENVS"
    mode = stat.S_IMODE(envs.stat().st_mode)
    ended(cluster)
    found = environment(cluster.log("job-1", attempt=4, node=1))

    assert found["SKYPILOT_NUM_NODES"] == "2"
    assert found["SKYPILOT_NODE_RANK"] == "1"
    assert found["SKYPILOT_NODE_IPS"] == "10.77.0.1\n10.77.0.2"
    assert found["SKYPILOT_NUM_GPUS_PER_NODE"] == "2"
    assert found["SKYPILOT_TASK_ID"] == "holdfast-job"
    assert found["HOLDFAST_ATTEMPT"] == found["HOLDFAST_EPOCH"] == "4"
    assert found["HOLDFAST_RUN_DIR"] == str(cluster.folder("job-1") / "attempts/4/node-1/run")
    assert found["HOLDFAST_SPOOL"] == str(cluster.folder("job-1") / "spool")
    assert int(found["HOLDFAST_MASTER_PORT"]) > 1023
    assert {name: found[name] for name in secrets} == secrets
    # Defaults that the job file does not override.
    assert found["TRANSFORMERS_OFFLINE"] == found["HF_DATASETS_OFFLINE"] == "1"
    assert (found["OMP_NUM_THREADS"], found["TOKENIZERS_PARALLELISM"]) == ("2", "false")
    assert found["HF_HOME"].endswith("/.cache/hf")
    assert found["RUN_PROJECT_DIR"] in found["PYTHONPATH"].split(":")
    # Only the owner can read the secrets, and they are deleted with the launch.
    assert mode == 0o600
    files = [path for path in cluster.folder("job-1").rglob("*") if path.is_file()]
    left = {path.name for path in files if b"CANARY" in path.read_bytes()}
    assert left == {"node.log"}, "the program has printed them itself"


def test_phases_are_logged_in_order_and_preflight_is_kept(
    cluster: SlurmBackend, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('step 1 loss 4.2')\n")
    script_launch = cluster.script_launch(
        "job-1", "holdfast-worker run train.py", nodes=2, workdir=str(tmp_path)
    )

    do(cluster.launcher.submit(script_launch))
    seen = ended(cluster)
    job = cluster.job("job-1")
    log = cluster.log("job-1")
    output = phase_lines(log)

    phases = [phase for phase, _ in output]
    assert list(dict.fromkeys(phases))[:5] == [
        "allocation",
        "rendezvous",
        "preflight",
        "probe",
        "launch",
    ]
    places = [log.index(message) for message in (" launch: ", "[RANK ", "step 1 loss 4.2")]
    assert places == sorted(places)
    assert dict(output)["rendezvous"].startswith("NNODES=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=2")
    assert ("preflight", "n2 proj=ok pkgs=ok") in output
    probes = [message for phase, message in output if phase == "probe"]
    assert all(re.fullmatch(r"NODE n\d OK -> PY 3\.1\d torch 2\..*", message) for message in probes)
    report = (cluster.folder("job-1") / f"preflight.{job}.txt").read_text()
    assert report == "n1 proj=ok pkgs=ok\nn2 proj=ok pkgs=ok\n"
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED


@pytest.mark.full
def test_four_nodes_of_four_gpus_are_sixteen_ranks(cluster: SlurmBackend, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    script_launch = cluster.script_launch(
        "job-1",
        "holdfast-worker run train.py",
        nodes=4,
        resources={"accelerators": "A100:4"},
        workdir=str(tmp_path),
    )

    do(cluster.launcher.submit(script_launch))
    seen = ended(cluster)

    logs = [cluster.log("job-1", node=node) for node in range(4)]
    ranks = [set(re.findall(r"\[RANK (\d+)\] WORLD_SIZE=16\n", log)) for log in logs]
    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED
    assert [len(found) for found in ranks] == [4, 4, 4, 4]
    assert set.union(*ranks) == {str(rank) for rank in range(16)}


def test_files_and_packages_are_sent_only_where_missing(
    cluster: SlurmBackend,
) -> None:
    source = cluster.home / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "data.txt").write_text("here")
    offline = cluster.home / "offline"
    (offline / "pkgs").mkdir(parents=True)
    (offline / "pkgs" / "brought.py").write_text("WORD = 'packages'\n")
    run = 'cat deep/data.txt; python3 -c "import brought; print(brought.WORD)"; echo $RUN_PROJECT_DIR $RUN_OFFLINE_ROOT'
    script_launch = cluster.script_launch(
        "job-1", run, nodes=2, workdir=str(source), envs={"OFFLINE_ROOT": str(offline)}
    )
    hide = [cluster.folder("job-1") / "workdir", offline]

    # Mounted over the folder on one node only, as if the shared folder were missing there.
    for path in hide:
        path.mkdir(parents=True, exist_ok=True)
    cluster.cluster.on("n2", "mount", "-t", "tmpfs", "none", str(offline))
    do(cluster.launcher.submit(script_launch))
    seen = ended(cluster)
    job = cluster.job("job-1")
    output = phase_lines(cluster.log("job-1"))

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, cluster.log("job-1", node=1)
    assert ("preflight", "n2 proj=ok pkgs=missing") in output
    assert ("staging", f"n2 staged -> /tmp/holdfast-{job}") in output
    assert not any(message.startswith("n1 staged") for _, message in output)
    workdir = cluster.folder("job-1") / "workdir"
    assert printed(cluster.log("job-1")) == f"herepackages\n{workdir} {offline}\n"
    assert printed(cluster.log("job-1", node=1)) == f"herepackages\n{workdir} /tmp/holdfast-{job}\n"
    assert cluster.cluster.on("n2", "sh", "-c", f"ls -d /tmp/holdfast-{job}* || true") == ""


def test_node_failing_the_probe_is_named_with_a_remedy(cluster: SlurmBackend) -> None:
    """One node lacks this Python; the other node does not wait for it."""
    python = cluster.home / "python3"
    python.write_text(
        f'#!/bin/sh\n[ "$(hostname)" = n1 ] && exec {PYTHON} "$@"\necho broken >&2; exit 1\n'
    )
    python.chmod(0o755)
    script_launch = cluster.script_launch(
        "job-1", "exit 0", nodes=2, envs={"HOLDFAST_PYTHON": str(python)}
    )

    do(cluster.launcher.submit(script_launch))
    seen = ended(cluster)

    message = "NODE n2 FAILED -> broken; exclude it with --exclude=n2"
    assert any(
        phase == "probe" and each.startswith("NODE n1 OK")
        for phase, each in phase_lines(cluster.log("job-1"))
    )
    assert seen.result
    assert (seen.result.exit_code, seen.result.detail) == (69, f"node 0 exited with 69: {message}")


def test_failed_node_ends_all_nodes_of_its_attempt(cluster: SlurmBackend) -> None:
    run = "[ $SKYPILOT_NODE_RANK = 1 ] && { echo out of memory; exit 9; }; exec sleep 1000"

    do(cluster.launcher.submit(cluster.script_launch("job-1", run, nodes=3)))
    seen = ended(cluster)

    assert seen.result
    assert (seen.result.exit_code, seen.result.detail) == (9, "node 1 exited with 9: out of memory")


@pytest.mark.full
def test_job_cancelled_instead_of_requeued_is_resubmitted(
    cluster: SlurmBackend,
) -> None:
    """The program receives a notice with the remaining time."""
    run = (
        "trap 'sleep 0.5; cat $HOLDFAST_RUN_DIR/notice.json > $WHERE; touch $HOLDFAST_RUN_DIR/trained; exit 75' TERM\n"
        "[ $HOLDFAST_ATTEMPT = 2 ] && exit 0\n"
        "touch $WHERE; while :; do sleep 0.1; done"
    )
    where = cluster.home / "notice"
    script_launch = cluster.script_launch(
        "job-1", run, {"partition": "lent"}, envs={"WHERE": str(where)}
    )
    do(cluster.launcher.submit(script_launch))
    eventually(where.exists, PATIENCE_S)

    urgent = (
        "--partition=urgent",
        "--nodes=4",
        "--exclusive",
        "--chdir=/tmp",
        "--output=/dev/null",
    )
    cluster.cluster.run("sbatch", *urgent, "--wrap=sleep 1")
    seen = ended(cluster)

    assert [placement.cause for placement in seen.recent_placements] == [Cause.PREEMPTED, None], (
        seen.result
    )
    assert len(list((cluster.folder("job-1") / "facts").glob("submitted.*"))) == 2
    assert "deadline" in json.loads(where.read_text())


@pytest.mark.full
def test_fast_reboot_of_a_node_leaves_no_endless_job(
    cluster: SlurmBackend,
) -> None:
    """Slurm still reports the job as running, but its heartbeat has stopped."""
    run = "[ $HOLDFAST_ATTEMPT = 2 ] && exit 0; exec sleep 1000"
    do(cluster.launcher.submit(cluster.script_launch("job-1", run, nodes=2)))
    beat = cluster.folder("job-1") / "attempts/1/node-1/beat"
    eventually(beat.exists, PATIENCE_S)

    cluster.cluster.cut("n2")
    cluster.cluster.boot("n2")
    os.utime(beat, (0, 0))
    seen = ended(cluster)

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED
    assert [placement.cause for placement in seen.recent_placements] == [Cause.NODE_FAILED, None]


@pytest.mark.full
def test_dead_node_before_the_start_is_no_program_failure(
    cluster: SlurmBackend,
) -> None:
    """Slurm has not detected the loss yet, and places the job on the node."""
    cluster.cluster.cut("n2")
    do(cluster.launcher.submit(cluster.script_launch("job-1", "exit 0", nodes=2)))
    seen = ended(cluster)

    assert seen.result
    assert seen.result.outcome is Outcome.SUCCEEDED, seen.result
    *others, last = [placement.cause for placement in seen.recent_placements]
    # Slurm may detect the loss before the preflight does, and then does not use the node.
    assert set(others) <= {Cause.NODE_FAILED}
    assert last is None


def test_submit_with_a_lost_response_finds_its_job(cluster: SlurmBackend) -> None:
    do(cluster.launcher.submit(cluster.launch("job-1")))
    (cluster.folder("job-1") / "facts" / "submitted.1").unlink()

    do(cluster.second_launcher().submit(cluster.launch("job-1")))

    # A second submit at the same time.
    async def both() -> None:
        again = cluster.launch("job-1")
        await asyncio.gather(
            cluster.launcher.submit(again), cluster.second_launcher().submit(again)
        )

    do(both())
    cluster.until("job-1", is_up)

    jobs = cluster.cluster.run("squeue", "-h", "-o", "%A", "-n", "job-1", "-t", "all").split()
    assert len(set(jobs) & {cluster.job("job-1")}) == 1
    assert cluster.cluster.run("squeue", "-h", "-o", "%A", "-n", "job-1", "-t", "R").split() == [
        cluster.job("job-1")
    ]


def test_sbatch_rejection_is_raised_with_its_message(cluster: SlurmBackend) -> None:
    script_launch = cluster.script_launch("job-1", "true", {"partition": "nowhere"})

    with pytest.raises(LaunchRefused, match=r"Slurm rejected the job: .*[Ii]nvalid partition"):
        do(cluster.launcher.submit(script_launch))


def test_only_orphans_of_this_service_are_removed(
    cluster: SlurmBackend,
) -> None:
    other = SlurmBackend(cluster.cluster, cluster.cluster.new_folder(), ProgramKind.RUNS)
    do(cluster.launcher.submit(cluster.launch("job-1")))
    do(other.launcher.submit(other.launch("job-1")))
    other.until("job-1", is_up)

    unknown = do(cluster.launcher.sweep(lambda key: None))
    strangers = [stray.key for stray in cluster.launcher.strangers]
    found = do(cluster.launcher.sweep(lambda key: False))

    assert (unknown, strangers, cluster.launcher.strangers) == ([], ["job-1"], ())
    assert [stray.key for stray in found] == ["job-1"]
    assert ended(cluster).result
    assert is_up(do(other.launcher.observe("job-1")))


def test_workers_of_other_versions_are_removed_when_unused(cluster: SlurmBackend) -> None:
    workers, newer = cluster.home / "workers", cluster.second_launcher(worker="newer")

    def left() -> set[str]:
        for worker in workers.iterdir():
            os.utime(worker, (0, 0))
        do(newer.sweep(lambda key: True))
        return {worker.name for worker in workers.iterdir()}

    do(cluster.launcher.submit(cluster.launch("job-1")))
    (used,) = (worker.name for worker in workers.iterdir())
    (workers / "thesis").mkdir()
    do(newer.submit(cluster.launch("job-2")))
    while_it_runs = left()
    do(cluster.launcher.cancel("job-1"))
    ended(cluster)

    assert while_it_runs == {used, "newer", "thesis"}
    assert left() == {"newer", "thesis"}


def test_forgotten_job_without_accounting_is_unknown(
    cluster: SlurmBackend,
) -> None:
    """Five minutes after the end of a job, sacct prints only an error."""
    do(cluster.launcher.submit(cluster.launch("job-1")))
    (cluster.folder("job-1") / "facts" / "submitted.1").write_text("job=4000000\n")

    seen = do(cluster.launcher.observe("job-1"))

    assert seen.status is LaunchStatus.FORGOTTEN


def test_logs_are_read_in_pieces(cluster: SlurmBackend) -> None:
    run = "printf hello; printf 'step 1' > $HOLDFAST_RUN_DIR/ranks/rank-$SKYPILOT_NODE_RANK.log"
    do(cluster.launcher.submit(cluster.script_launch("job-1", run, nodes=2)))
    ended(cluster)

    sources = do(cluster.launcher.logs("job-1"))
    _, _, node, rank = sources

    assert [(each.attempt, each.node, each.rank) for each in sources] == [
        (1, 0, None),
        (1, 0, 0),
        (1, 1, None),
        (1, 1, 1),
    ]
    assert (node.size_bytes, rank.size_bytes) == (5, 6)
    assert cluster.launcher.read_log("job-1", node, 1, 3) == b"ell"
    assert cluster.launcher.read_log("job-1", rank, 5, 100) == b"1"
    assert cluster.launcher.read_log("job-1", replace(rank, rank=7), 0, 100) == b""


def test_engine_info_reports_version_partitions_and_skew(cluster: SlurmBackend) -> None:
    vitals = do(cluster.launcher.engine_info())

    assert re.fullmatch(r"\d\d\.\d\d\.\d+", vitals.version)
    assert vitals.clouds == ("lent", "main", "spot", "urgent")
    assert vitals.clock_skew_s is not None
    assert abs(vitals.clock_skew_s) < 5


def test_missing_sbatch_is_reported_by_the_transport(tmp_path: Path) -> None:
    assert shutil.which("bash")
    reply = local(tmp_path).bash("PATH=$1; sbatch --version", str(tmp_path))

    assert reply.code == 127
    assert "sbatch" in reply.err


def test_restart_after_a_failure_waits_in_slurms_queue(slurm: SlurmCluster) -> None:
    cluster = SlurmBackend(slurm, slurm.new_folder(), ProgramKind.FAILS_TRAINED)
    cluster.launcher = cluster.second_launcher(restart_s=900)

    do(cluster.launcher.submit(cluster.launch("job-1", max_failures=3)))
    second = cluster.folder("job-1") / "facts" / "submitted.2"
    cluster.until("job-1", lambda _: second.exists())
    waiting = slurm.run("scontrol", "-o", "show", "job", cluster.job("job-1"))
    times = dict(re.findall(r"(SubmitTime|StartTime)=(\S+)", waiting))
    do(cluster.launcher.cancel("job-1"))

    submitted, start = (datetime.fromisoformat(times[name]) for name in ("SubmitTime", "StartTime"))
    assert "JobState=PENDING" in waiting
    assert start - submitted >= timedelta(seconds=899)
