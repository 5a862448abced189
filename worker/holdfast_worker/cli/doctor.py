"""`holdfast-worker doctor`: what this machine trains with, and which others it reaches. torch is imported only where it is asked."""

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

REACH_S: Final = 3.0
"""For one address. Shorter takes a slow road for a wall, longer makes whoever names many wait for each that is walled off."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How a connection to an address went."""

    address: str
    is_open: bool
    told: str
    """The same in words, with what may be in the way."""


def machine() -> dict[str, Json]:
    """What a manifest tells of a machine, and by which backends its ranks can talk.

    Raises:
        ImportError: torch is not here, or does not work.
    """
    import torch.distributed as spread  # noqa: PLC0415 - seconds that whoever asks for addresses need not pay

    from holdfast_worker.telemetry import manifest  # noqa: PLC0415

    there = spread.is_available()
    backends: dict[str, Json] = {
        "nccl": there and spread.is_nccl_available(),
        "gloo": there and spread.is_gloo_available(),
        "mpi": there and spread.is_mpi_available(),
    }
    return {**manifest.machine(), "backends": backends}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = "Say which torch, CUDA, backends and GPUs this machine has; ends with 1 where something is not there."
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--reach",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="try to connect there instead, such as where ranks meet; repeatable",
    )
    parser.set_defaults(do=lambda asked: examine(asked.reach, as_json=asked.json))


def examine(
    addresses: Sequence[str],
    *,
    as_json: bool,
    ask: Callable[[], Mapping[str, Json]] = machine,
) -> int:
    """The exit code; what was found is printed."""
    if addresses:
        return _reach(addresses, as_json=as_json)
    try:
        told = ask()
    except ImportError as error:
        log_info(f"torch cannot be used: {error}; pip install {requirement('worker')}")
        return Exit.FAILED
    print_line(json.dumps(told) if as_json else "\n".join(answers(told)))
    return Exit.DONE


def answers(told: Mapping[str, Any]) -> list[str]:
    """The four things that one wants to know before a first run, a line each."""
    driver = f", driver {told['driver']}" if told["driver"] else ""
    lack = ", and no GPU that it can use: ranks compute on CPUs and talk over Gloo"
    cuda = f"{told['cuda'] or 'none'}{driver}" + lack * (not told["gpus"])
    words = {"nccl": "NCCL", "gloo": "Gloo", "mpi": "MPI"}
    signs = [f"{word} {'✓' if told['backends'][name] else '✗'}" for name, word in words.items()]
    return [
        f"PyTorch   {told['torch']}",
        f"CUDA      {cuda}",
        f"backends  {'  '.join(signs)}",
        f"GPUs      {len(told['gpus'])}" + "".join(f"\n          {name}" for name in told["gpus"]),
    ]


def reach(address: str, patience_s: float = REACH_S) -> Reached:
    """Whether something listens at `host:port`, as seen from here."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return Reached(address, False, "is no address; write HOST:PORT")
    began_s = time.monotonic()
    try:
        socket.create_connection((host.strip("[]"), int(port)), patience_s).close()
    except socket.gaierror:
        return Reached(address, False, f"{host} is not the name of any host, as this one sees it")
    except ConnectionRefusedError:
        return Reached(
            address, False, "the host answers, and nobody listens there; begin with that side"
        )
    except TimeoutError:
        return Reached(
            address,
            False,
            f"no answer in {patience_s:g} s: a firewall, a security group, or another network",
        )
    except OSError as error:
        return Reached(address, False, f"{error.strerror or error}")
    return Reached(address, True, f"reached in {1000 * (time.monotonic() - began_s):.1f} ms")


def _reach(addresses: Sequence[str], *, as_json: bool) -> int:
    found = [reach(address) for address in addresses]
    if as_json:
        print_line(
            json.dumps(
                [
                    {"address": one.address, "is_open": one.is_open, "told": one.told}
                    for one in found
                ]
            )
        )
    else:
        width = max(len(one.address) for one in found)
        for one in found:
            print_line(f"{'✓' if one.is_open else '✗'} {one.address:<{width}}  {one.told}")
    return Exit.DONE if all(one.is_open for one in found) else Exit.FAILED
