"""Reach: whether this node can connect to where the ranks meet, so that a firewall is named before anybody waits for half an hour.

Standard library only. What it finds is told and decides nothing: that the ranks do not meet is found out by them.
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

PATIENCE_S: Final = 60.0
"""For the first node to come up. Longer says it late, shorter complains of one that is still being set up."""
TRY_S: Final = 5.0
"""For one try: who has dropped a packet does not answer. Longer takes fewer tries, shorter fails over a slow link."""
RETRY_S: Final = 1.0
"""Between two tries. Longer notices the first node late, shorter is traffic about nothing."""


def watch_for_reach(topology: Topology) -> None:
    """Say it, beside whatever comes next, if this node cannot reach the first one."""
    if topology.node_rank:
        threading.Thread(
            target=_watch, args=(topology,), name="holdfast-reach", daemon=True
        ).start()


def _watch(at: Topology) -> None:
    why = connection_error(at.master_address, at.master_port, PATIENCE_S)
    if why:
        log_info(
            f"node {at.node_rank} cannot reach node 0 at {at.master_address}:{at.master_port}: {why}"
        )


def connection_error(address: str, port: int, within_s: float) -> str:
    """Why nobody is reached there within this time, in words; empty once somebody is. A name that means nothing is said at once."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((address, port), timeout=TRY_S).close()
        except socket.gaierror:
            return "its name does not resolve on this node; give its address, or put it into the hosts file"
        except OSError as error:
            if time.monotonic() >= until_s:
                return _of(error, within_s)
        else:
            return ""
        threading.Event().wait(RETRY_S)


def _of(error: OSError, within_s: float) -> str:
    if error.errno == errno.ECONNREFUSED:
        return (
            f"the machine answers, and nobody listens at that port after {within_s:.0f} s; "
            "look whether the first node has begun, and at the same port"
        )
    told = os.strerror(error.errno).lower() if error.errno else "no answer"
    return f"{told}; let TCP between the nodes through (firewall, security group), on all ports"
