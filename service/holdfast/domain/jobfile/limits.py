"""Where a job is given up: money, time and failures, as people write them and as the guards count them; and how long
its program may stand still, which its worker sees to.

Words are kept as they were written, so that a stored job reads like its file; the properties are what code
counts with: whole micro-dollars and whole seconds.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MICROS_PER_USD: Final = 1_000_000
MOST_USD: Final = 10_000_000
"""Largest sum. Smaller refuses real budgets; bigger lets a slip of the finger stand for one."""
LONGEST_S: Final = 366 * 86_400
"""Longest span. Smaller refuses real deadlines; bigger lets `48000h` stand where `48h` was meant."""
SHORTEST_STALL_S: Final = 60
"""Least of `max_stall`. Smaller ends a program for a step that took a breath; bigger refuses who cannot wait."""

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
STALL_WORDS: Final = ("auto", "off")
_PART: Final = re.compile(r"(\d+)\s*([smhdw])\s*")
_SPAN: Final = re.compile(rf"({_PART.pattern})+")
_TELL_TIME: Final = "write a duration such as 48h, or a time such as 2026-12-01T18:00:00Z"


def dollars(micros: int) -> str:
    """Micro-dollars for a sentence, to the cent: `$1,234.50`."""
    return f"${micros / MICROS_PER_USD:,.2f}"


def seconds(text: str) -> int:
    """The seconds of `90s`, `15m`, `48h`, `7d`, `2w` or `1h 30m`.

    Raises:
        ValueError: not a duration, or none that a job can have.
    """
    words = text.strip().lower()
    if not _SPAN.fullmatch(words):
        msg = (
            f"{text!r} is not a duration; write a number with its unit, such as 90s, 30m, 48h or 7d"
        )
        raise ValueError(msg)
    total_s = sum(int(part[1]) * _UNITS_S[part[2]] for part in _PART.finditer(words))
    if not 1 <= total_s <= LONGEST_S:
        msg = f"{text!r} is not between one second and 366 days; write a duration that is"
        raise ValueError(msg)
    return total_s


def _usd(value: Any) -> Decimal:
    sentence = f"{value!r} is not a sum in US dollars; write a number such as 600 or 12.50"
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(sentence)  # noqa: TRY004 - pydantic makes a flaw of a ValueError
    try:
        sum_usd = Decimal(str(value))
    except InvalidOperation as error:
        raise ValueError(sentence) from error
    if not sum_usd.is_finite() or not 0 < sum_usd <= MOST_USD:
        msg = f"{value!r} is not above 0 and at most {MOST_USD:,} US dollars; write a sum that is"
        raise ValueError(msg)
    micros = sum_usd * MICROS_PER_USD
    if micros != micros.to_integral_value():
        msg = f"{value!r} is finer than a millionth of a dollar; round it"
        raise ValueError(msg)
    return sum_usd


def _span(value: Any) -> str:
    if not isinstance(value, str):
        msg = f"{value!r} has no unit; write a duration such as 90s, 30m, 48h or 7d"
        raise ValueError(msg)  # noqa: TRY004 - pydantic makes a flaw of a ValueError
    seconds(value)
    return value


def _deadline(value: Any) -> str:
    """The word itself; a time that YAML has read for us becomes RFC 3339 again."""
    if isinstance(value, str) and _SPAN.fullmatch(value.strip().lower()):
        return _span(value)
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            msg = f"{value!r} is not a deadline; {_TELL_TIME}"
            raise ValueError(msg) from error
    if not isinstance(moment, datetime):
        shown = value.isoformat() if isinstance(value, date) else value
        msg = f"{shown!r} is not a deadline; {_TELL_TIME}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic makes a flaw of a ValueError
    if moment.tzinfo is None:
        msg = f"{moment.isoformat()!r} has no time zone; write {moment.isoformat()}Z if it is UTC"
        raise ValueError(msg)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _stall(value: Any) -> str:
    """The word itself; `off`, which YAML takes for false, becomes a word again."""
    word = "off" if value is False else value
    if isinstance(word, str) and word.strip().lower() in STALL_WORDS:
        return word.strip().lower()
    if not isinstance(word, str) or not _SPAN.fullmatch(word.strip().lower()):
        msg = (
            f"{word!r} is no time to stand still; write auto, off, or a duration such as 20m or 2h"
        )
        raise ValueError(msg)
    if seconds(word) < SHORTEST_STALL_S:
        msg = f"{word!r} is less than a minute, which a step may take; write a longer one"
        raise ValueError(msg)
    return word


Usd = Annotated[Decimal, BeforeValidator(_usd)]
Span = Annotated[str, BeforeValidator(_span)]
Deadline = Annotated[str, BeforeValidator(_deadline)]
Stall = Annotated[str, BeforeValidator(_stall)]


class Limits(BaseModel):
    """Where a job is given up. What is not set does not limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_cost_usd: Usd | None = None
    """What the nodes of the job may cost in all, in US dollars."""
    max_hourly_cost_usd: Usd | None = None
    """What all nodes together may cost in an hour, in US dollars."""
    deadline: Deadline | None = None
    """When it has to be over: a duration from the submission, or a time as in RFC 3339."""
    max_duration: Span | None = None
    """How long it may have nodes, in all attempts together."""
    max_wait: Span = "24h"
    """How long it may be without nodes at a stretch."""
    max_failures: Annotated[int, Field(ge=1, le=100)] = 3
    """How often the program itself may fail. Preemptions do not count."""
    max_fruitless: Annotated[int, Field(ge=1, le=1000)] = 10
    """How many placements in a row may come to no step that was not reached before. Fewer stop a job in a bad hour of
    the market; more pay for setups."""
    max_stall: Stall = "auto"
    """How long its ranks may make no step, before they are ended, and the program has failed once."""

    @property
    def max_cost_micros(self) -> int | None:
        """Micro-dollars for the whole job; None: no limit."""
        return _micros(self.max_cost_usd)

    @property
    def max_hourly_cost_micros(self) -> int | None:
        """Micro-dollars per hour for all nodes together; None: no limit."""
        return _micros(self.max_hourly_cost_usd)

    @property
    def max_duration_s(self) -> int | None:
        """Seconds with nodes; None: no limit."""
        return None if self.max_duration is None else seconds(self.max_duration)

    @property
    def max_wait_s(self) -> int:
        """Seconds without nodes at a stretch."""
        return seconds(self.max_wait)

    @property
    def max_stall_word(self) -> str:
        """The same for a worker, which knows one unit at a time."""
        return self.max_stall if self.max_stall in STALL_WORDS else f"{seconds(self.max_stall)}s"

    def deadline_at(self, submitted_at: datetime) -> datetime | None:
        """When a job that was submitted then has to be over; None: never."""
        if self.deadline is None:
            return None
        if _SPAN.fullmatch(self.deadline.strip().lower()):
            return submitted_at + timedelta(seconds=seconds(self.deadline))
        return datetime.fromisoformat(self.deadline)


def _micros(usd: Decimal | None) -> int | None:
    return None if usd is None else int(usd * MICROS_PER_USD)
