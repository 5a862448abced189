"""The table of planted mistakes fits the sources and tests of this version."""

from __future__ import annotations

import ast
from collections import Counter

from planted_mistakes.__main__ import MISTAKES
from planted_mistakes.mistake import PACKAGES, ROOT, Mistake
from support.tables import for_each


def test_names_of_mistakes_are_unique() -> None:
    counts = Counter(mistake.name for mistake in MISTAKES)

    assert counts.total() == len(counts)


@for_each(MISTAKES)
def test_mistake_fits_its_file_and_names_its_tests(mistake: Mistake) -> None:
    ast.parse(mistake.planted_text())

    assert mistake.old != mistake.new
    assert mistake.file.split("/")[0] in PACKAGES
    assert bool(mistake.tests) is not bool(mistake.equivalent)
    for test in mistake.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8")
