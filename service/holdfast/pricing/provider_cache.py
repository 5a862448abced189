"""Answers of a cloud provider, each kept for a time, and a limit of questions in a day."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, TypeVar

from holdfast.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

DAY: Final = timedelta(days=1)


class ProviderUnavailable(Exception):
    """A provider was not asked or did not respond, for the given reason."""

    def __init__(self, why: str, *, is_quiet: bool = False, retry: timedelta | None = None) -> None:
        super().__init__(why)
        self.is_quiet = is_quiet
        """Whether this is expected because the service has no credentials."""
        self.retry = retry
        """When to ask again; None: the usual time after a failed question."""


@dataclass(frozen=True, slots=True)
class _Answer:
    until: datetime
    value: Any
    """None: there was none, and no retry before `until`."""


@dataclass
class AnswerCache:
    """The latest answers of one provider. Thread-safe."""

    clock: Clock
    provider: str
    """The subject of log messages."""
    per_day: int
    """Counted questions in a day."""
    what: str
    """What they ask for, in log messages."""
    _answers: dict[tuple[str, ...], _Answer] = field(default_factory=dict)
    _logged_reasons: set[str] = field(default_factory=set)
    _asked: deque[datetime] = field(default_factory=deque)
    """Times of the counted questions of the last day."""
    _lock: Lock = field(default_factory=Lock)

    def get(
        self, key: tuple[str, ...], keep: timedelta, ask: Callable[[], T], *, retry: timedelta
    ) -> T | None:
        """Return a known answer or a new one, or None if there was none; both expire."""
        now = self.clock.now()
        with self._lock:
            for other in [key for key, kept in self._answers.items() if kept.until <= now]:
                del self._answers[other]
            if known := self._answers.get(key):
                value: T | None = known.value
                return value
        try:
            answer: T | None = ask()
        except ProviderUnavailable as reason:
            answer, keep = None, reason.retry or retry
            self._log_once(reason)
        with self._lock:
            self._answers[key] = _Answer(now + keep, answer)
        return answer

    def count_question(self) -> None:
        """Count a question.

        Raises:
            ProviderUnavailable: the limit of the day is reached.
        """
        now = self.clock.now()
        with self._lock:
            while self._asked and now - self._asked[0] >= DAY:
                self._asked.popleft()
            if len(self._asked) >= self.per_day:
                raise ProviderUnavailable(
                    f"only {self.per_day} requests for {self.what} are sent a day"
                )
            self._asked.append(now)

    def _log_once(self, reason: ProviderUnavailable) -> None:
        """Log each reason once, because missing credentials are permanent."""
        if str(reason) not in self._logged_reasons:
            self._logged_reasons.add(str(reason))
            level = logging.INFO if reason.is_quiet else logging.WARNING
            log.log(level, "%s is unavailable: %s", self.provider, reason)
