"""Rank identity from the variables of torchrun, Slurm and SkyPilot, and errors in them."""

from __future__ import annotations

import pytest
import torch
from holdfast_worker.distributed.process_group import ProcessGroup, device_for
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.topology.identity import SINGLE_PROCESS, RankIdentity, RankSource

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_NNODES": "4",
    "SLURM_JOB_NODELIST": "hpc[07-10]",
}
SKYPILOT = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
}


@pytest.mark.parametrize(
    ("env", "identity"),
    [
        ({}, SINGLE_PROCESS),
        (TORCHRUN, RankIdentity(5, 1, 8, RankSource.TORCHRUN, "env://")),
        (SLURM, RankIdentity(5, 1, 16, RankSource.SLURM, "tcp://hpc07:24567")),
        (SKYPILOT, RankIdentity(1, 0, 2, RankSource.SKYPILOT, "tcp://10.0.0.4:29400")),
        # torchrun in a Slurm step on a SkyPilot cluster: torchrun's ranks count.
        (SKYPILOT | SLURM | TORCHRUN, RankIdentity(5, 1, 8, RankSource.TORCHRUN, "env://")),
        # A single process needs no rendezvous.
        ({"RANK": "0", "WORLD_SIZE": "1"}, RankIdentity(0, 0, 1, RankSource.TORCHRUN)),
        (SLURM | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}, RankIdentity(0, 0, 1, RankSource.SLURM)),
        (SKYPILOT | {"SKYPILOT_NUM_NODES": "1"}, SINGLE_PROCESS),
        # A step on some nodes of a job has its own first node.
        (
            SLURM | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "hpc[09,10]"},
            RankIdentity(5, 1, 8, RankSource.SLURM, "tcp://hpc09:24567"),
        ),
    ],
)  # fmt: skip
def test_environment_of_every_launcher_is_recognized(
    env: dict[str, str], identity: RankIdentity
) -> None:
    assert RankIdentity.read(env) == identity


def test_slurm_batch_script_is_not_one_of_its_tasks() -> None:
    env = SLURM | {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    script = {name: value for name, value in env.items() if name != "SLURM_STEP_ID"}

    assert RankIdentity.read(script) == SINGLE_PROCESS
    assert RankIdentity.read(env).world_size == 16


@pytest.mark.parametrize("method", ["env://", "tcp://10.0.0.9:29500", "file:///shared/meet-7"])
@pytest.mark.parametrize("launcher", [TORCHRUN, SLURM, SKYPILOT])
def test_init_method_of_the_environment_is_used(launcher: dict[str, str], method: str) -> None:
    place = {"MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "29400"}

    assert (
        RankIdentity.read(launcher | place | {"HOLDFAST_INIT_METHOD": method}).init_method == method
    )


def test_manually_numbered_ranks_need_no_master() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "HOLDFAST_INIT_METHOD": "file:///shared/meet"}

    assert RankIdentity.read(env) == RankIdentity(
        1, 0, 2, RankSource.TORCHRUN, "file:///shared/meet"
    )


def test_master_named_by_a_batch_script_is_used() -> None:
    env = SLURM | {"MASTER_ADDR": "hpc07-ib", "MASTER_PORT": "29500"}

    assert RankIdentity.read(env).init_method == "env://"


def test_port_of_a_launcher_precedes_that_of_a_job_id() -> None:
    assert (
        RankIdentity.read(SLURM | {"HOLDFAST_MASTER_PORT": "31000"}).init_method
        == "tcp://hpc07:31000"
    )


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "1"}, "RANK is set, but WORLD_SIZE is not: start the script with torchrun, or unset RANK"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is set, but RANK is not"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "MASTER_ADDR is not set, so that the ranks have no rendezvous"),
        (TORCHRUN | {"RANK": "8"}, "RANK is 8, but WORLD_SIZE is 8: ranks are counted from 0"),
        (TORCHRUN | {"LOCAL_RANK": "6"}, "LOCAL_RANK is 6, but RANK is 5"),
        (TORCHRUN | {"RANK": "one"}, "RANK is 'one', which is not a number"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT is 99999, which is not a port"),
        (SLURM | {"SLURM_NTASKS": ""}, "SLURM_PROCID is set, but SLURM_NTASKS is not"),
        (SLURM | {"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST is not: start the script with srun"),
        (SLURM | {"SLURM_JOB_NODELIST": "n[1-"}, "SLURM_JOB_NODELIST: 'n[1-' is not a list of hosts"),
        (SLURM | SKYPILOT, "SKYPILOT_NUM_NODES is 2, but SLURM_NNODES is 4: unset the variables of the one"),
        (SKYPILOT | {"SKYPILOT_NODE_IPS": "10.0.0.4"}, "SKYPILOT_NODE_IPS names 1"),
        (SKYPILOT | {"SKYPILOT_NUM_NODES": "two"}, "SKYPILOT_NUM_NODES is 'two', which is not a number"),
        (TORCHRUN | {"HOLDFAST_INIT_METHOD": "tpc://h:1"}, "write env://, tcp://HOST:PORT or file:///PATH"),
        (TORCHRUN | {"HOLDFAST_INIT_METHOD": "tcp://h"}, "HOLDFAST_INIT_METHOD is 'tcp://h': write env://"),
        (TORCHRUN | {"HOLDFAST_INIT_METHOD": "tcp://h:x"}, "HOLDFAST_INIT_METHOD is 'tcp://h:x'"),
        (TORCHRUN | {"HOLDFAST_INIT_METHOD": "file://shared/x"}, "HOLDFAST_INIT_METHOD is 'file://shared/x'"),
        (SLURM | {"HOLDFAST_INIT_METHOD": "env://"}, "MASTER_ADDR is not set"),
        ({"HOLDFAST_BACKEND": "glow"}, "HOLDFAST_BACKEND is 'glow': did you mean gloo? write gloo or nccl"),
        ({"HOLDFAST_BACKEND": "NCLL"}, "did you mean nccl"),
        ({"HOLDFAST_BACKEND": "tensorpipe"}, "HOLDFAST_BACKEND is 'tensorpipe': write gloo or nccl"),
    ],
)  # fmt: skip
def test_invalid_environment_is_refused_with_the_reason(env: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        RankIdentity.read(env)

    assert message in str(refused.value)


def test_each_rank_has_its_own_gpu_or_all_use_the_cpu() -> None:
    assert str(device_for(RankIdentity(5, 1, 8), gpus=2)) == "cuda:1"
    assert str(device_for(RankIdentity(5, 1, 8), gpus=0)) == "cpu"


@pytest.mark.parametrize(
    ("identity", "gpus", "message"),
    [
        (RankIdentity(2, 2, 4), 2, "local rank 2 has no GPU of its own, because this machine has 2: .*--nproc-per-node 2"),
        (RankIdentity(0, 0, 4, backend="nccl"), 0, "HOLDFAST_BACKEND is nccl, but this machine has no usable GPU"),
    ],
)  # fmt: skip
def test_rank_without_its_device_is_refused(
    identity: RankIdentity, gpus: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        device_for(identity, gpus)


def test_each_rank_uses_one_gpu_and_a_rank_without_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a simulated machine with two GPUs."""
    used: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: used.append(str(device)))

    joined = [ProcessGroup.join(RankIdentity(rank, rank, 1)) for rank in (0, 1)]
    with pytest.raises(SystemExit) as refused:
        ProcessGroup.join(RankIdentity(2, 2, 1))

    assert used == [str(ranks.device) for ranks in joined] == ["cuda:0", "cuda:1"]
    assert refused.value.code == Exit.USAGE
    assert (
        "local rank 2 has no GPU of its own, because this machine has 2" in capsys.readouterr().err
    )
