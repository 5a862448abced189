"""`holdfast-worker doctor`: torch, CUDA and GPUs of this machine, and its connections."""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.console import log_info, print_line
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.release import requirement
from holdfast_worker.protocol.reports import Json

CONNECT_TIMEOUT_S: Final = 3.0
"""Timeout of one connection.
A lower value fails on a slow network; a higher value delays the result for blocked addresses."""


@dataclass(frozen=True, slots=True)
class ConnectionCheck:
    """Result of a connection to an address."""

    address: str
    is_open: bool
    detail: str
    """The result for people, with the possible cause of a failure."""


def machine() -> dict[str, Json]:
    """The machine part of a manifest, and the available backends of torch.distributed.

    Raises:
        ImportError: torch is not installed, or cannot be imported.
    """
    import torch.distributed as dist  # noqa: PLC0415 - takes seconds, which --reach saves

    from holdfast_worker.telemetry import manifest  # noqa: PLC0415

    is_available = dist.is_available()
    backends: dict[str, Json] = {
        "nccl": is_available and dist.is_nccl_available(),
        "gloo": is_available and dist.is_gloo_available(),
        "mpi": is_available and dist.is_mpi_available(),
    }
    return {**manifest.machine(), "backends": backends}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the options of `holdfast-worker doctor`."""
    parser.description = "show the torch, CUDA, backends and GPUs of this machine; exits with 1 if torch or a connection fails"
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--reach",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="check the connection to an address instead, such as the rendezvous; repeatable",
    )
    parser.set_defaults(do=lambda options: check_machine(options.reach, as_json=options.json))


def check_machine(
    addresses: Sequence[str],
    *,
    as_json: bool,
    describe: Callable[[], Mapping[str, Json]] = machine,
) -> int:
    """Print the facts of this machine, or check connections; returns the exit code."""
    if addresses:
        return _check_connections(addresses, as_json=as_json)
    try:
        facts = describe()
    except ImportError as error:
        log_info(f"torch cannot be imported: {error}; run pip install {requirement('worker')}")
        return Exit.FAILED
    print_line(json.dumps(facts) if as_json else "\n".join(summary_lines(facts)))
    return Exit.DONE


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """PyTorch, CUDA, backends and GPUs of a machine, one line each."""
    driver = f", driver {facts['driver']}" if facts["driver"] else ""
    no_gpu = ", but no usable GPU: ranks run on CPUs and communicate over Gloo"
    cuda = f"{facts['cuda'] or 'none'}{driver}" + no_gpu * (not facts["gpus"])
    labels = {"nccl": "NCCL", "gloo": "Gloo", "mpi": "MPI"}
    marks = [f"{label} {'✓' if facts['backends'][name] else '✗'}" for name, label in labels.items()]
    return [
        f"PyTorch   {facts['torch']}",
        f"CUDA      {cuda}",
        f"backends  {'  '.join(marks)}",
        f"GPUs      {len(facts['gpus'])}"
        + "".join(f"\n          {name}" for name in facts["gpus"]),
    ]


def check_connection(address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> ConnectionCheck:
    """Try to connect to `host:port` from this machine."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return ConnectionCheck(address, False, "invalid address; write HOST:PORT")
    began_s = time.monotonic()
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except socket.gaierror:
        return ConnectionCheck(
            address, False, f"the host name {host} does not resolve on this machine"
        )
    except ConnectionRefusedError:
        return ConnectionCheck(
            address,
            False,
            "connection refused: the host is up, but no process listens on this port",
        )
    except TimeoutError:
        return ConnectionCheck(
            address,
            False,
            f"no answer within {timeout_s:g} s: check firewalls, security groups and routes",
        )
    except OSError as error:
        return ConnectionCheck(address, False, f"{error.strerror or error}")
    return ConnectionCheck(
        address, True, f"connected in {1000 * (time.monotonic() - began_s):.1f} ms"
    )


def _check_connections(addresses: Sequence[str], *, as_json: bool) -> int:
    found = [check_connection(address) for address in addresses]
    if as_json:
        print_line(
            json.dumps(
                [
                    {"address": one.address, "is_open": one.is_open, "told": one.detail}
                    for one in found
                ]
            )
        )
    else:
        width = max(len(one.address) for one in found)
        for one in found:
            print_line(f"{'✓' if one.is_open else '✗'} {one.address:<{width}}  {one.detail}")
    return Exit.DONE if all(one.is_open for one in found) else Exit.FAILED
