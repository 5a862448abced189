"""Rules over tables: one test for all rows, which names each row that breaks the rule. A test of its own for each row takes longer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import yaml
from holdfast.errors import HoldfastError

Row = TypeVar("Row")
BROKEN: Final = (AssertionError, LookupError, ValueError, SyntaxError, HoldfastError, yaml.YAMLError)  # fmt: skip
"""How a rule says that a row breaks it."""


def for_each(
    rows: Iterable[Row], name: Callable[[Row], object] = str
) -> Callable[[Callable[[Row], None]], Callable[[], None]]:
    """Make a test of a rule about one row: it fails with a paragraph for each row that breaks the rule."""
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
    """What a row has wrong; None: nothing."""
    try:
        rule(row)
    except BROKEN as error:
        return f"{type(error).__name__}: {error}"
    return None
