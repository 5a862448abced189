"""Ids of jobs: short, sorted by submission time, which they contain."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's alphabet, without letters that look like digits.
_OURS: Final = re.compile(f"j[{_ALPHABET}]{{12}}")
_CHANCE_BITS: Final = 25


def new_job_id(now: datetime) -> str:
    """A new short id that sorts by time: a letter, seven digits of seconds, five random ones."""
    number = (int(now.timestamp()) << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)
    digits = "".join(_ALPHABET[(number >> shift) & 31] for shift in range(55, -5, -5))
    return f"j{digits}"


def new_sweep_id(now: datetime) -> str:
    """A new id of a sweep, which differs from those of jobs in its first letter."""
    return f"s{new_job_id(now)[1:]}"


def made_at(job_id: str) -> datetime | None:
    """The second in which an id was created; None for an id of a different form."""
    if not _OURS.fullmatch(job_id):
        return None
    number = 0
    for digit in job_id[1:]:
        number = number * len(_ALPHABET) + _ALPHABET.index(digit)
    return datetime.fromtimestamp(number >> _CHANCE_BITS, UTC)
