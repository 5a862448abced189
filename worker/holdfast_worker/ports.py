"""Ports of this machine: whether one is free, and one that is."""

from __future__ import annotations

import errno
import socket


def is_free(port: int) -> bool:
    """Whether somebody could listen there on all addresses, as the first node's torchrun will."""
    with socket.socket() as probe:
        # As that does: connections of an earlier run that are just ending are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def free_port() -> int:
    """A port above 1024 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
