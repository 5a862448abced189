"""`holdfast-worker doctor`: devices of this machine, and connections to others."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import torch
from holdfast_worker.__main__ import main
from holdfast_worker.cli import doctor
from holdfast_worker.cli.doctor import check_connection, summary_lines
from support.live_service import free_port

TWO: dict[str, Any] = {
    "torch": "2.13.0+cu130",
    "cuda": "13.0",
    "driver": "580.65.06",
    "gpus": ["NVIDIA A100", "NVIDIA A100"],
    "backends": {"nccl": True, "gloo": True, "mpi": False},
}


def test_each_check_prints_one_line() -> None:
    assert summary_lines(TWO) == [
        "PyTorch   2.13.0+cu130",
        "CUDA      13.0, driver 580.65.06",
        "backends  NCCL ✓  Gloo ✓  MPI ✗",
        "GPUs      2\n          NVIDIA A100\n          NVIDIA A100",
    ]


def test_cuda_without_gpus_is_distinguished_from_no_cuda() -> None:
    without = {**TWO, "gpus": [], "driver": None}

    assert summary_lines(without)[1].startswith("CUDA      13.0, but no usable GPU")
    assert summary_lines({**without, "cuda": None})[1].startswith(
        "CUDA      none, but no usable GPU"
    )


def test_json_output_describes_the_whole_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--json"])

    body = json.loads(capsys.readouterr().out)
    assert end.value.code == 0
    assert body["torch"] == torch.__version__
    assert body["backends"]["gloo"] is True
    assert body["gpus_per_node"] == len(body["gpus"]) == torch.cuda.device_count()
    assert f"torch=={torch.__version__}" in body["lock"]


def test_open_port_connects_and_a_closed_one_is_reported_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = check_connection(f"127.0.0.1:{server.getsockname()[1]}")
    refused = check_connection(f"127.0.0.1:{free_port()}")

    assert (there.is_open, "connected in" in there.detail) == (True, True)
    assert (refused.is_open, "no process listens" in refused.detail) == (
        False,
        True,
    )


@pytest.mark.parametrize(
    "address", ["node1", ":29500", "node1:", "node1:http", "node1:0", "node1:70000"]
)
def test_invalid_address_is_explained(address: str) -> None:
    assert "write HOST:PORT" in check_connection(address).detail


def test_all_addresses_are_printed_and_one_failure_exits_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        some = doctor.check_machine([here, "x"], as_json=False)
        shown = capsys.readouterr().out.splitlines()
        all_ = doctor.check_machine([here], as_json=True)
        body = json.loads(capsys.readouterr().out)

    assert (some, all_) == (1, 0)
    assert [line[0] for line in shown] == ["✓", "✗"]
    assert [(one["address"], one["is_open"]) for one in body] == [(here, True)]


def test_missing_torch_is_reported_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    def ask() -> dict[str, Any]:
        raise ImportError("No module named 'torch'")

    assert doctor.check_machine([], as_json=True, describe=ask) == 1
    assert "torch cannot be imported: No module named 'torch'" in capsys.readouterr().err
