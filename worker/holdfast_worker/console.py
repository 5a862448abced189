"""Sentences for the person who reads the log of a job."""

from __future__ import annotations

import sys
from contextlib import suppress


def log_info(sentence: str) -> None:
    """One line on stderr, marked as ours, so that it is found in a log full of losses; nothing where there is no room."""
    with suppress(OSError):
        sys.stderr.write(f"holdfast: {sentence}\n")
        sys.stderr.flush()


def print_line(text: str) -> None:
    """What was asked for, on stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
