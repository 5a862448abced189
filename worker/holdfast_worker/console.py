"""Sentences for the person who reads the log of a job."""

from __future__ import annotations

import sys


def tell(sentence: str) -> None:
    """One line on stderr, marked as ours, so that it is found in a log full of losses."""
    sys.stderr.write(f"holdfast: {sentence}\n")
    sys.stderr.flush()
