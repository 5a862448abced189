"""Rules over tables: one test for all rows, which lists every row that breaks the rule.

One test per row would take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import yaml
from holdfast.errors import HoldfastError

Row = TypeVar("Row")
BROKEN: Final = (AssertionError, LookupError, ValueError, SyntaxError, HoldfastError, yaml.YAMLError)  # fmt: skip
"""Exceptions that mean that a row breaks the rule."""


def for_each(
    rows: Iterable[Row], name: Callable[[Row], object] = str
) -> Callable[[Callable[[Row], None]], Callable[[], None]]:
    """Decorate a rule about one row as a test that fails with a paragraph for each broken row."""
    rows = list(rows)
    assert rows, "a rule over an empty table holds for nothing"

    def test_of(rule: Callable[[Row], None]) -> Callable[[], None]:
        def test() -> None:
            broken = [f"{name(row)}: {error}" for row in rows if (error := _broken(rule, row))]
            assert not broken, "\n\n".join(broken)

        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return test_of


def _broken(rule: Callable[[Row], None], row: Row) -> str | None:
    """Return how a row breaks the rule; None: it does not."""
    try:
        rule(row)
    except BROKEN as error:
        return f"{type(error).__name__}: {error}"
    return None
