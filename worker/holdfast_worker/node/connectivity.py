"""Connectivity check of the rendezvous, which logs a blocked port.

Torch itself fails after half an hour.

Standard library only. The check only logs; the ranks detect a failed rendezvous themselves.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.topology.nodes import Topology

REACH_TIMEOUT_S: Final = 60.0
"""Time for node 0 to start.
A lower value warns while it is still being set up; a higher value warns late."""
CONNECT_TIMEOUT_S: Final = 5.0
"""Timeout of one connection, as a firewall may drop packets.
A lower value fails on a slow network; a higher value allows fewer tries."""
RETRY_S: Final = 1.0
"""Pause between tries. A lower value adds traffic; a higher value notices node 0 later."""


def start_connectivity_check(topology: Topology) -> None:
    """Check in the background whether this node can reach node 0, and log a failure."""
    if topology.node_rank:
        threading.Thread(
            target=_check, args=(topology,), name="holdfast-reach", daemon=True
        ).start()


def _check(at: Topology) -> None:
    error = connection_error(at.master_address, at.master_port, REACH_TIMEOUT_S)
    if error:
        log_info(
            f"node {at.node_rank} cannot reach node 0 at {at.master_address}:{at.master_port}: {error}"
        )


def connection_error(address: str, port: int, within_s: float) -> str:
    """Why a connection failed for this time; empty once it succeeds.

    An unresolvable name fails at once.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S).close()
        except socket.gaierror:
            return "its name does not resolve on this node; use its IP address, or add it to the hosts file"
        except OSError as error:
            if time.monotonic() >= until_s:
                return _describe_error(error, within_s)
        else:
            return ""
        threading.Event().wait(RETRY_S)


def _describe_error(error: OSError, within_s: float) -> str:
    if error.errno == errno.ECONNREFUSED:
        return (
            f"the machine is up, but no process listens on that port after {within_s:.0f} s; "
            "check that node 0 has started with the same port"
        )
    reason = os.strerror(error.errno).lower() if error.errno else "no answer"
    return f"{reason}; allow TCP between the nodes on all ports (firewall, security group)"
