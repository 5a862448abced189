"""A job as torchrun commands: their contents, and features without a command."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from holdfast.domain.jobfile.parser import Overrides, parse_job_file
from holdfast.errors import BadJobFile, BadRequest
from holdfast.rendering import (
    NodeCommand,
    TorchrunRequest,
    render,
    torchrun_commands,
    torchrun_notes,
)

TWO_BY_FOUR = """
name: tiny gpt
num_nodes: 2
workdir: /srv/tiny
resources: {infra: local, accelerators: A100:4}
run: holdfast-worker run train.py --epochs 50
holdfast: {checkpoint: {store: "s3://bucket/a b"}}
"""
PLAIN = "name: plain\nnum_nodes: 2\nresources: {infra: local}\nrun: holdfast-worker run train.py\n"


def commands(file: str, **options: Any) -> tuple[NodeCommand, ...]:
    spec = parse_job_file(file, Overrides()).spec
    return torchrun_commands(spec, render(spec).task, TorchrunRequest(**options))


def test_both_nodes_of_a_job_have_the_same_command() -> None:
    first, second = commands(TWO_BY_FOUR, hosts=["10.0.0.1", "10.0.0.2"])

    assert first.command == second.command
    assert (first.host, second.host, first.ranks) == ("10.0.0.1", "10.0.0.2", 4)
    assert first.command.splitlines()[0] == "cd /srv/tiny"
    assert first.command.splitlines()[-1] == (
        "torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-id=tiny-gpt "
        "--rdzv-endpoint=10.0.0.1:29400 train.py --epochs 50"
    )
    assert "export HOLDFAST_STORE='s3://bucket/a b'" in first.command
    assert "export HOLDFAST_JOB=tiny-gpt\n" in first.command
    assert "HOLDFAST_TIDY" not in first.command, "no service owns the retention of this job"


def test_nodes_of_two_sizes_differ_in_their_ranks_alone() -> None:
    first, second = commands(TWO_BY_FOUR, hosts=["10.0.0.1", "10.0.0.2"], ranks=[4, 2])

    assert first.command.replace("--nproc-per-node=4", "--nproc-per-node=2") == second.command
    assert first.ranks + second.ranks == 6


def test_commands_without_hosts_are_for_one_machine() -> None:
    [one] = commands(
        "name: n\nrun: |\n  echo begin\n  exec holdfast-worker run --nproc-per-node 3 train.py\n"
    )

    assert one.host == "127.0.0.1"
    assert "echo begin\nexec torchrun --nnodes=1 --nproc-per-node=3 " in one.command


def test_rendered_port_is_the_requested_one() -> None:
    assert "--rdzv-endpoint=127.0.0.1:29500" in commands(PLAIN, port=29500)[1].command


def test_elastic_job_has_a_range_of_nodes() -> None:
    result = commands(PLAIN, nodes=3, least_nodes=2)

    assert len(result) == 3
    assert "torchrun --nnodes=2:3 --max-restarts=100 --nproc-per-node=1 " in result[2].command
    assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n" in result[2].command
    assert "TORCH_DISABLE" not in commands(PLAIN, nodes=3, least_nodes=3)[0].command


def test_launcher_variables_used_by_the_program_are_exported() -> None:
    file = PLAIN.replace("train.py", "train.py --node $SKYPILOT_NODE_RANK")

    result = commands(file, hosts=["fd00::1", "fd00::2"], ranks=[2])

    assert "export SKYPILOT_NODE_RANK=1\n" in result[1].command
    assert "--rdzv-endpoint='[fd00::1]:29400'" in result[1].command


@pytest.mark.parametrize("value", ["it's", "$(touch x)", "a\nb", "`id`", '"'])
def test_no_value_of_a_job_file_is_read_by_the_shell(value: str) -> None:
    spec = parse_job_file(PLAIN, Overrides(envs={"ODD": value})).spec
    command = torchrun_commands(spec, render(spec).task, TorchrunRequest())[0].command
    exports = command[: command.index("torchrun")]

    output = subprocess.run(
        ["sh", "-c", f'{exports}printf %s "$ODD"'], capture_output=True, text=True, check=True
    )

    assert output.stdout == value
    assert shlex.quote(value) in command


@pytest.mark.parametrize(
    "run", ["python train.py", "holdfast-worker run a.py\nholdfast-worker run b.py"]
)
def test_ranks_started_twice_or_nowhere_are_refused(run: str) -> None:
    file = PLAIN.replace("holdfast-worker run train.py", "|\n  " + run.replace("\n", "\n  "))

    with pytest.raises(BadJobFile) as refused:
        commands(file)

    assert [flaw.pointer for flaw in refused.value.issues] == ["#/run"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": ["a", "b", "c"]}, "hosts: 3 given for 2 nodes"),
        ({"ranks": [1, 2, 3]}, "ranks: 3 given for 2 nodes"),
        ({"least_nodes": 3}, "nnodes: the maximum of 3:2 is below the minimum"),
        ({"hosts": ["a", "b"], "nodes": 3}, "hosts: 2 given for 3 nodes"),
    ],
)
def test_inconsistent_node_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        commands(PLAIN, **options)


def test_notes_list_setup_and_secrets_omitted_from_commands() -> None:
    file = f"{PLAIN}setup: pip install x\nsecrets: {{HF_TOKEN: hush}}\n"

    spec = parse_job_file(file, Overrides()).spec
    notes = torchrun_notes(spec)

    assert ["setup" in notes[0], "export HF_TOKEN" in notes[1]] == [True, True]
    assert "hush" not in "".join(
        each.command for each in torchrun_commands(spec, render(spec).task, TorchrunRequest())
    )
