"""Parsing of NCCL's log of connections, and the advice that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast_worker.__main__ import main
from holdfast_worker.distributed.nccl_transport import (
    LinkType,
    NcclTransport,
    advice,
    parse_logs,
    parse_topology,
)
from holdfast_worker.protocol.environment import Exit

LOGS = Path(__file__).with_name("nccl")
# From a DGX, in NVIDIA/nccl-tests#78, with fewer GPUs.
TOPOLOGY = """\
        \x1b[4mGPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity    NUMA Affinity\x1b[0m
GPU0     X      NV12    SYS     SYS     PIX     0-23,48-71      0
GPU1    NV12     X      SYS     SYS     PXB     0-23,48-71      0
GPU2    SYS     SYS      X      NV12    SYS     24-47,72-95     1
GPU3    SYS     SYS     NV12     X      SYS     24-47,72-95     1
mlx5_0  PIX     PXB     SYS     SYS      X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def parse_log(name: str) -> NcclTransport:
    return parse_logs((LOGS / f"{name}.txt").read_text().splitlines())


def test_fastest_transport_needs_no_advice() -> None:
    found = parse_log("ib")

    assert (found.version, found.nodes) == ("2.21.5", 2)
    assert found.summary == "NVLink + IB"
    assert found.is_direct
    assert found.devices == ["mlx5_0:1", "mlx5_1:1"]
    assert found.by_pair == {(3, 0): LinkType.IB, (0, 1): LinkType.NVLINK, (1, 2): LinkType.IB}
    assert advice(found) == []


def test_sockets_between_nodes_are_reported_with_advice() -> None:
    found = parse_log("socket")

    [between, within] = advice(found)

    assert found.summary == "P2P + Socket"
    assert "no InfiniBand device was found" in between
    assert "docker0 usually does not connect nodes: set NCCL_SOCKET_IFNAME" in between
    assert "P2P is NVLink or PCIe" in within


def test_plugin_is_named_and_host_memory_is_reported_as_slow() -> None:
    found = parse_log("efa")

    assert found.summary == "SHM + AWS Libfabric"
    assert ["NCCL_P2P_DISABLE" in line for line in advice(found)] == [True]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("n:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.", "NCCL_IB_DISABLE is set"),
        ("n:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "mlx5_2:1"),
    ],
)  # fmt: skip
def test_reason_for_sockets_is_reported_if_logged(line: str, message: str) -> None:
    sockets = "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/1"

    [result] = advice(parse_logs([line, sockets]))

    assert message in result


def test_infiniband_through_the_host_is_reported() -> None:
    [result] = advice(
        parse_logs(["n:1:1 [0] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3"])
    )

    assert "GDRDMA" in result


def test_gpu_links_are_counted_by_pairs() -> None:
    assert parse_topology(TOPOLOGY) == {"NV12": 2, "SYS": 4}
    assert parse_topology("nvidia-smi has failed") == {}


def test_command_audits_a_log_or_a_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "71.log").write_text((LOGS / "socket.txt").read_text())

    with pytest.raises(SystemExit) as of_folder:
        main(["audit", str(tmp_path)])
    text = capsys.readouterr().out
    with pytest.raises(SystemExit) as of_file:
        main(["audit", "--json", str(LOGS / "ib.txt")])
    body = json.loads(capsys.readouterr().out)

    assert (of_folder.value.code, of_file.value.code) == (Exit.DONE, Exit.DONE)
    assert "between nodes  Socket\n" in text
    assert "channels       1 by P2P, 2 by Socket\n" in text
    assert "set NCCL_SOCKET_IFNAME" in " ".join(text.split())
    assert (body["within"], body["between"], body["advice"]) == ("NVLink", "IB", [])


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("step 1 loss 4.2\n", Exit.FAILED, "no output of NCCL found"),
        (None, Exit.USAGE, "No such file or directory"),
    ],
)
def test_missing_nccl_output_is_reported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    code: Exit,
    message: str,
) -> None:
    log = tmp_path / "train.log"
    if text is not None:
        log.write_text(text)

    with pytest.raises(SystemExit) as ended:
        main(["audit", str(log)])

    assert ended.value.code == code
    assert message in capsys.readouterr().err
