"""Output of the worker for people: log lines on stderr, results on stdout."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

PREFIX: Final = "holdfast: "
"""Prefix of a log line."""
STEP: Final = "step "
"""What a progress line begins with, after `PREFIX`."""


def log_info(sentence: str) -> None:
    """Write one line to stderr with the prefix `holdfast: `; a full disk is ignored."""
    with suppress(OSError):
        sys.stderr.write(f"{PREFIX}{sentence}\n")
        sys.stderr.flush()


def print_line(text: str) -> None:
    """Write one line to stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
