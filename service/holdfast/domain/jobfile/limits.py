"""Limits of a job: cost, time, failures and stall, as written and as counted.

Values are stored as written, so that a stored job reads like its file. The properties return whole micro-dollars and seconds.
Guards enforce all limits but `max_stall`, which the worker enforces.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from holdfast.errors import BadJobFile, ValidationIssue

MICROS_PER_USD: Final = 1_000_000
MAX_USD: Final = 10_000_000
"""Largest amount. A lower value refuses real budgets; a higher value accepts typing errors."""
MAX_SPAN_S: Final = 366 * 86_400
"""Longest span. A lower value refuses real deadlines; a higher value accepts `48000h` instead of `48h`."""
MIN_STALL_S: Final = 60
"""Lower bound of `max_stall`. A lower value ends programs during a slow step; a higher value refuses fast detection."""

_MICROS_PER_CENT: Final = MICROS_PER_USD // 100
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
STALL_KEYWORDS: Final = ("auto", "off")
_PART: Final = re.compile(r"(\d+)\s*([smhdw])\s*")
_SPAN: Final = re.compile(rf"({_PART.pattern})+")
_DEADLINE_HINT: Final = "write a duration such as 48h, or a time such as 2026-12-01T18:00:00Z"


def format_usd(micros: int) -> str:
    """Micro-dollars as text: `$1,234.50`, and exactly where cents would hide them: `$0.0015`."""
    dollars = micros / MICROS_PER_USD
    if dollars >= 1 or micros % _MICROS_PER_CENT == 0:
        return f"${dollars:,.2f}"
    return f"${dollars:.6f}".rstrip("0")


def parse_seconds(text: str) -> int:
    """Parse `90s`, `15m`, `48h`, `7d`, `2w` or `1h 30m` into seconds.

    Raises:
        ValueError: Not a duration, or out of range.
    """
    words = text.strip().lower()
    if not _SPAN.fullmatch(words):
        msg = (
            f"{text!r} is not a duration; write a number with its unit, such as 90s, 30m, 48h or 7d"
        )
        raise ValueError(msg)
    total_s = sum(int(part[1]) * _UNITS_S[part[2]] for part in _PART.finditer(words))
    if not 1 <= total_s <= MAX_SPAN_S:
        msg = f"{text!r} is not between one second and 366 days; write a duration in this range"
        raise ValueError(msg)
    return total_s


def _usd(value: Any) -> Decimal:
    sentence = f"{value!r} is not an amount in US dollars; write a number such as 600 or 12.50"
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(sentence)  # noqa: TRY004 - pydantic reports a ValueError
    try:
        sum_usd = Decimal(str(value))
    except InvalidOperation as error:
        raise ValueError(sentence) from error
    if not sum_usd.is_finite() or not 0 < sum_usd <= MAX_USD:
        msg = f"{value!r} is not above 0 and at most {MAX_USD:,} US dollars; write an amount in this range"
        raise ValueError(msg)
    micros = sum_usd * MICROS_PER_USD
    if micros != micros.to_integral_value():
        msg = f"{value!r} is finer than a millionth of a dollar; round it"
        raise ValueError(msg)
    return sum_usd


def _span(value: Any) -> str:
    if not isinstance(value, str):
        msg = f"{value!r} has no unit; write a duration such as 90s, 30m, 48h or 7d"
        raise ValueError(msg)  # noqa: TRY004 - pydantic reports a ValueError
    parse_seconds(value)
    return value


def _deadline(value: Any) -> str:
    """A deadline as written; a time parsed by YAML is formatted as RFC 3339 again."""
    if isinstance(value, str) and _SPAN.fullmatch(value.strip().lower()):
        return _span(value)
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            msg = f"{value!r} is not a deadline; {_DEADLINE_HINT}"
            raise ValueError(msg) from error
    if not isinstance(moment, datetime):
        shown = value.isoformat() if isinstance(value, date) else value
        msg = f"{shown!r} is not a deadline; {_DEADLINE_HINT}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic reports a ValueError
    if moment.tzinfo is None:
        msg = f"{moment.isoformat()!r} has no time zone; write {moment.isoformat()}Z if it is UTC"
        raise ValueError(msg)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _stall(value: Any) -> str:
    """A stall limit as written; false, as YAML parses `off`, becomes `off` again."""
    word = "off" if value is False else value
    if isinstance(word, str) and word.strip().lower() in STALL_KEYWORDS:
        return word.strip().lower()
    if not isinstance(word, str) or not _SPAN.fullmatch(word.strip().lower()):
        msg = f"{word!r} is not a stall limit; write auto, off, or a duration such as 20m or 2h"
        raise ValueError(msg)
    if parse_seconds(word) < MIN_STALL_S:
        msg = f"{word!r} is less than a minute, and a step may take that long; write a longer time"
        raise ValueError(msg)
    return word


Usd = Annotated[Decimal, BeforeValidator(_usd)]
Span = Annotated[str, BeforeValidator(_span)]
Deadline = Annotated[str, BeforeValidator(_deadline)]
Stall = Annotated[str, BeforeValidator(_stall)]


class Limits(BaseModel):
    """Limits of a job. Unset limits do not apply."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_cost_usd: Usd | None = None
    """Maximum total cost of the job's nodes, in US dollars."""
    max_hourly_cost_usd: Usd | None = None
    """Maximum hourly price of all nodes together, in US dollars."""
    deadline: Deadline | None = None
    """End time of the job: a duration from submission, or an RFC 3339 time."""
    max_duration: Span | None = None
    """Maximum time with nodes over all attempts."""
    max_wait: Span = "24h"
    """Maximum consecutive time without nodes."""
    max_failures: Annotated[int, Field(ge=1, le=100)] = 3
    """Failures of the program before the job fails. Preemptions do not count."""
    max_fruitless: Annotated[int, Field(ge=1, le=1000)] = 10
    """Consecutive attempts without progress before the job fails.

    A lower value stops jobs in a bad hour of the market; a higher value pays for more setups.
    """
    max_stall: Stall = "auto"
    """Time without a step on any rank after which the attempt is ended and counts as a failure."""

    @property
    def max_cost_micros(self) -> int | None:
        """Maximum cost in micro-dollars; None without a limit."""
        return _micros(self.max_cost_usd)

    @property
    def max_hourly_cost_micros(self) -> int | None:
        """Maximum hourly price of all nodes in micro-dollars; None without a limit."""
        return _micros(self.max_hourly_cost_usd)

    @property
    def max_duration_s(self) -> int | None:
        """Maximum seconds with nodes; None without a limit."""
        return None if self.max_duration is None else parse_seconds(self.max_duration)

    @property
    def max_wait_s(self) -> int:
        """Maximum consecutive seconds without nodes."""
        return parse_seconds(self.max_wait)

    @property
    def max_stall_argument(self) -> str:
        """`max_stall` in the format of the worker, which accepts a single unit."""
        return (
            self.max_stall
            if self.max_stall in STALL_KEYWORDS
            else f"{parse_seconds(self.max_stall)}s"
        )

    def deadline_at(self, submitted_at: datetime) -> datetime | None:
        """Deadline of a job submitted at this time; None without one."""
        if self.deadline is None:
            return None
        if _SPAN.fullmatch(self.deadline.strip().lower()):
            return submitted_at + timedelta(seconds=parse_seconds(self.deadline))
        return datetime.fromisoformat(self.deadline)

    def check_deadline(self, now: datetime) -> None:
        """Check that the deadline of a new job is in the future.

        Raises:
            BadJobFile: The deadline has passed.
        """
        deadline = self.deadline_at(now)
        if deadline is not None and deadline <= now:
            issue = ValidationIssue(
                "#/holdfast/limits/deadline",
                f"{deadline:%Y-%m-%d %H:%M:%SZ} is in the past; write a future time",
            )
            raise BadJobFile((issue,))


def _micros(usd: Decimal | None) -> int | None:
    return None if usd is None else int(usd * MICROS_PER_USD)
