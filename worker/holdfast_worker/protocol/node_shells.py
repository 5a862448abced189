"""Shells that users open on the nodes of a job, and the routes for them.

Standard library only.

A shell is a command with a terminal: its wrapper finds it with `NEXT_COMMAND_PATH`, announces its start and reports its end as for other commands.
Input and output are streams of bytes. Each request has the offset at which it continues, so that a repeated one adds nothing, and what
the receiver has confirmed is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_worker.protocol.node_commands import decode_bytes

SHELL_INPUT_PATH: Final = "/v1/jobs/{job}/shells/{id}/input"
"""POST `{runner, at, columns, rows}`: bytes of input that the program has, and the known size of the terminal.
200: a `ShellInput`, with `data` in base64, when there is input, another size, or an end; after at most HOLD_S."""
SHELL_OUTPUT_PATH: Final = "/v1/jobs/{job}/shells/{id}/output"
"""POST `{runner, at, data}`: output in base64, after `at` bytes. 200: `{next}`, the bytes that the service has taken of all output.
Without room for any of it, answered after at most HOLD_S."""

HOLD_S: Final = 10.0
"""How long the service holds a request for input, or for output.
A lower value adds requests of idle shells; a higher value delays the note that a client is gone."""
MAX_SHELL_S: Final = 8 * 3600
"""Maximum time of a shell. A lower value ends long inspections; a higher value lets forgotten shells disturb training."""
MAX_SHELL_INPUT_BYTES: Final = 32 * 1024
"""Input that waits for its node. A lower value slows down pasting; a higher value fills the database."""
MAX_SHELL_OUTPUT_BYTES: Final = 192 * 1024
"""Output that waits for its client. A lower value slows down long output; a higher value fills the database, and shows
more of it after Ctrl-C."""
OUTPUT_BATCH_BYTES: Final = 64 * 1024
"""Bytes of output in one request. A lower value slows down long output; a higher value delays the terminal."""
CLIENT_GONE_S: Final = 60.0
"""Silence of a client after which its shell is ended.
A lower value ends shells in short outages of a network; a higher value keeps forgotten programs."""
OUTAGE_S: Final = 600.0
"""Time without the service after which node and client give up a shell.
A lower value ends shells in an upgrade of the service; a higher value keeps those whose client has given up."""
MAX_TERMINAL_SIZE: Final = 4096
"""Columns, and rows, of a terminal. A higher value exceeds what programs expect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellInput:
    """Input for a shell, and what its node has to know of the client."""

    data: bytes = b""
    columns: int
    rows: int
    closed: bool = False
    """Whether the user has closed the shell, or it has ended."""
    silent_s: float = 0
    """Seconds since the last request of the client."""

    @staticmethod
    def parse(reply: Mapping[str, Any]) -> ShellInput:
        """Read a response of the service.

        Raises:
            ValueError, KeyError, TypeError: it has another form.
        """
        return ShellInput(
            data=decode_bytes(reply["data"]),
            columns=int(reply["columns"]),
            rows=int(reply["rows"]),
            closed=bool(reply["closed"]),
            silent_s=float(reply["silent_s"]),
        )
