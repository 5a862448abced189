"""Who a process is: torchrun's words, Slurm's, SkyPilot's, or none; and what cannot be true is refused in a sentence."""

from __future__ import annotations

import pytest
import torch
from holdfast_worker.distributed.process_group import ProcessGroup, device_for
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.topology.identity import SINGLE_PROCESS, RankIdentity, RankSource, expand_hosts

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
        # torchrun in a step of Slurm, on a cluster of SkyPilot: its ranks are the ones that there are.
        (SKYPILOT | SLURM | TORCHRUN, RankIdentity(5, 1, 8, RankSource.TORCHRUN, "env://")),
        # One process needs no others.
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
def test_ranks_meet_where_the_environment_says(launcher: dict[str, str], method: str) -> None:
    place = {"MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "29400"}

    assert (
        RankIdentity.read(launcher | place | {"HOLDFAST_INIT_METHOD": method}).init_method == method
    )


def test_ranks_that_a_person_numbers_need_no_master() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "HOLDFAST_INIT_METHOD": "file:///shared/meet"}

    assert RankIdentity.read(env) == RankIdentity(
        1, 0, 2, RankSource.TORCHRUN, "file:///shared/meet"
    )


def test_a_batch_script_that_names_the_master_is_heeded() -> None:
    env = SLURM | {"MASTER_ADDR": "hpc07-ib", "MASTER_PORT": "29500"}

    assert RankIdentity.read(env).init_method == "env://"


def test_the_port_of_a_launcher_goes_before_that_of_a_job_id() -> None:
    assert (
        RankIdentity.read(SLURM | {"HOLDFAST_MASTER_PORT": "31000"}).init_method
        == "tcp://hpc07:31000"
    )


@pytest.mark.parametrize(
    ("env", "words"),
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
def test_invalid_environment_is_refused_with_the_reason(env: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        RankIdentity.read(env)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("hosts", "expanded"),
    [
        ("login", ["login"]),
        ("n[1-3,07],login", ["n1", "n2", "n3", "n07", "login"]),
        ("n[008-011]", ["n008", "n009", "n010", "n011"]),
        ("r[1-2]n[01-02]-ib", ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]),
    ],
)
def test_hosts_are_read_as_slurm_writes_them(hosts: str, expanded: list[str]) -> None:
    assert expand_hosts(hosts) == expanded


@pytest.mark.parametrize(
    "hosts", ["", ",a", "a,", "a,,b", "a b", "n[1-", "n1]", "n[3-1]", "n[a-b]", "n[1-999999999]"]
)
def test_invalid_host_list_is_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="is not a list of hosts"):
        expand_hosts(hosts)


def test_each_rank_has_a_gpu_of_its_own_or_all_have_the_cpu() -> None:
    assert str(device_for(RankIdentity(5, 1, 8), gpus=2)) == "cuda:1"
    assert str(device_for(RankIdentity(5, 1, 8), gpus=0)) == "cpu"


@pytest.mark.parametrize(
    ("who", "gpus", "words"),
    [
        (RankIdentity(2, 2, 4), 2, "local rank 2 has no GPU of its own, because this machine has 2: .*--nproc-per-node 2"),
        (RankIdentity(0, 0, 4, backend="nccl"), 0, "HOLDFAST_BACKEND is nccl, but this machine has no usable GPU"),
    ],
)  # fmt: skip
def test_rank_without_its_device_is_refused(who: RankIdentity, gpus: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        device_for(who, gpus)


def test_each_rank_uses_one_gpu_and_a_rank_without_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine with two GPUs, of which this one only has the number."""
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
