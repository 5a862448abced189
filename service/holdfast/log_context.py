"""Log output of the service, as text or JSON, with the request, job and launch of a record.

The context follows calls, tasks and the threads of routes, so that what a launcher or the database logs is found by the job, too.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

LogFormat: TypeAlias = Literal["text", "json"]

_QUIET: Final = ("alembic", "httpx2", "httpcore2")
_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("log_context")


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Add fields to all records that are logged within: `request`, `job`, `launch`."""
    token = _CONTEXT.set({**current_context(), **fields})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def current_context() -> Mapping[str, str]:
    """The fields of records that are logged here."""
    return _CONTEXT.get({})


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, with the context and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **current_context(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """One line for each record, with those fields of the context that its message does not have."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of the standard library
        """Format the line of a record, without its traceback."""
        line = super().formatMessage(record)
        missing = [
            f"{name}={value}" for name, value in current_context().items() if value not in line
        ]
        return f"{line} [{' '.join(missing)}]" if missing else line


def log_to_stderr(log_format: LogFormat) -> None:
    """Configure log output on standard error, one line per record and, as text, its traceback."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    for chatty in _QUIET:
        logging.getLogger(chatty).setLevel(logging.WARNING)
