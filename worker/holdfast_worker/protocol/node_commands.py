"""Commands that users run on the nodes of a job, and the routes for them.

Standard library only.

The wrapper of each node waits for a response of the service, which comes when a command for this node does.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from holdfast_worker.protocol.reports import Json

NEXT_COMMAND_PATH: Final = "/v1/jobs/{job}/commands/next"
"""POST `{node, attempt, terminals}`; attempt 0: the launcher does not number them; `terminals`: the node runs shells.
200 after at most NEXT_COMMAND_S: `{id, command, timeout_s, terminal}`, with null without a command.
403 or 404: the service has none, now and later."""
START_COMMAND_PATH: Final = "/v1/jobs/{job}/commands/{id}/start"
"""POST `{runner}`, a random name of the wrapper.
200: `{starts}`; false: another wrapper runs it, or it is too late: do not run it."""
COMMAND_OUTPUT_PATH: Final = "/v1/jobs/{job}/commands/{id}/output"
"""POST a `CommandOutput` of the runner: `{runner, stdout, stderr, stdout_at, stderr_at, exit_code, detail}`."""

NEXT_COMMAND_S: Final = 50.0
"""How long the service holds a request for the next command.
A lower value adds requests of idle nodes; a higher value exceeds the timeout of proxies, usually 60 s."""
MAX_COMMAND_S: Final = 3600
"""Maximum time of a command. A lower value ends long inspections; a higher value lets forgotten commands disturb training."""
MAX_OUTPUT_STREAM_BYTES: Final = 256 * 1024
"""Bytes of standard output, and of standard error, that are kept of a command.
A lower value cuts the answers of inspections; a higher value fills the database."""
MAX_ARGUMENTS: Final = 500
MAX_ARGUMENT_CHARS: Final = 32 * 1024
"""Characters of all arguments together. A higher value exceeds what the audit log should hold."""
TIMED_OUT: Final = 124
"""Exit code of a command that was ended at its timeout, as of `timeout`."""
NOT_STARTED: Final = 127
"""Exit code of a command that cannot be started, as in a shell."""


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """A command for a node."""

    id: str
    command: tuple[str, ...]
    """Empty for the usual shell of the node."""
    timeout_s: float
    terminal: str | None = None
    """Type of its terminal, as in TERM; None for a command without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """More output of a command, and its end."""

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_at: int = 0
    """Bytes of standard output that were sent before, so that a repeated request adds nothing."""
    stderr_at: int = 0
    exit_code: int | None = None
    """None while it runs."""
    detail: str = ""
    """What is not normal about its end, as a sentence; empty otherwise."""

    def dump(self) -> dict[str, Json]:
        """This output as JSON."""
        return {
            "stdout": encode_bytes(self.stdout),
            "stderr": encode_bytes(self.stderr),
            "stdout_at": self.stdout_at,
            "stderr_at": self.stderr_at,
            "exit_code": self.exit_code,
            "detail": self.detail,
        }


def encode_bytes(data: bytes) -> str:
    """Output as text in JSON."""
    return base64.b64encode(data).decode()


def decode_bytes(text: str) -> bytes:
    """Output from text in JSON.

    Raises:
        ValueError: the text is not in base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("is not in base64") from error
