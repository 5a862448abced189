"""YAML bombs are refused before they are expanded."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from holdfast.domain.jobfile.bounded_yaml import MAX_DEPTH, MAX_VALUES, Bounds, NotReadable, load
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.errors import BadJobFile
from holdfast.rendering import render
from hypothesis import given
from hypothesis import strategies as st

BODIES = int(os.environ.get("HOSTILE_BODIES", "150"))
"""The number of drawn documents; 1000 take about half a minute."""
MOST_BYTES = 50 * 1024 * 1024


def doubled(draw: random.Random) -> str:
    """Merge keys, aliases in lists or in mappings.

    Each line expands to several of the previous one.
    """
    fold = draw.randrange(2, 10)
    one = draw.choice(
        [
            lambda y: f"{{<<: [{', '.join([f'*{y}'] * fold)}]}}",
            lambda y: f"[{', '.join([f'*{y}'] * fold)}]",
            lambda y: f"{{{', '.join(f'k{n}: *{y}' for n in range(fold))}}}",
            lambda y: f"{{<<: {{<<: *{y}, a: *{y}}}, b: *{y}}}",
        ]
    )
    lines = [f"x{n}: &x{n} {one(f'x{n - 1}')}" for n in range(1, draw.randrange(25, 60))]
    return "\n".join(["run: x", "x0: &x0 {a: 1, b: 2}", *lines])


def nested(draw: random.Random) -> str:
    return draw.choice(["[", "{a: ", "- ", "? ", "[[{", "a:\n "]) * draw.randrange(70, 20_000)


def wide(draw: random.Random) -> str:
    part = draw.choice(["a{0}: &a{0} 1\n", "A{0}: {0}\n", "? [{0}]\n: 1\n", "acelerators{0}: x\n"])
    return "run: x\n" + "".join(part.format(n) for n in range(draw.randrange(2_000, 12_000)))


def long_words(draw: random.Random) -> str:
    word = draw.choice("arx") * draw.randrange(500, 60_000)
    shape = draw.choice(["? {0}\n: {0}\n", "a: &a {0}\nb: [{1}]\n", "resources: {{? {0} : 1}}\n"])
    return "run: x\n" + shape.format(word, "*a, " * draw.randrange(20, 1_900))


def odd_values(draw: random.Random) -> str:
    numbers = ["1" * 100_000, "1" + ":1" * 60_000, "1" + ":1" * 300 + ".5", "0b" + "1" * 90_000]
    tagged = ["!!timestamp x", "!!int ''", "!!bool x", "!!float ''", "!!binary é", "!!set [1]"]
    tags = "".join(f"%TAG !a{n}! b\n" for n in range(14_000)) + "--- x"
    return draw.choice([*(f"run: x\na: {one}" for one in (*numbers, *tagged)), tags])


def many_flaws(draw: random.Random) -> str:
    bad = draw.choice(["resources: {{any_of: [{0}]}}", "holdfast: {{tags: {{{1}}}}}"])
    count = draw.randrange(100, 320)
    entries = "{accelerators: [[]], x: y}, " * count, ", ".join(f"a{n}: [x]" for n in range(count))
    return "run: x\n" + bad.format(*entries)


HOSTILE: tuple[Callable[[random.Random], str], ...] = (
    doubled,
    nested,
    wide,
    long_words,
    odd_values,
    many_flaws,
)


def test_hostile_documents_are_refused_in_bounded_memory() -> None:
    draw = random.Random(4)

    for number in range(BODIES):
        text = HOSTILE[number % len(HOSTILE)](draw)
        tracemalloc.start()
        with pytest.raises(BadJobFile) as refusal:
            render(parse_job_file(text).spec)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < MOST_BYTES, text[:200]
        assert len(refusal.value.detail) < 100_000, text[:200]


def test_an_ordinary_merge_key_still_merges() -> None:
    assert load("base: &b {a: 1, b: 2}\nown: {<<: *b, b: 3}")["own"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH, "is nested too deeply"),
        ("&a [*a]", "is nested too deeply"),
        ("{a: &a {<<: *a}}", "is nested too deeply"),
        ("[" + "1, " * MAX_VALUES + "]", f"contains more than {MAX_VALUES} keys and values"),
        ("a: &a [1, 2, 3]\nb: [" + "*a, " * (MAX_VALUES // 4) + "]", "contains more than"),
        ("? " + "k" * 2000 + "\n: 1", "has a key of 2000 characters; write at most 1024"),
        ("a: &a " + "k" * 2000 + "\n*a : 1", "has a key of 2000 characters"),
        ("a: 1\n---\nb: 2", "contains 2 documents; write one"),
        ("a: [1\nb: é]}", "is not YAML: line 2, column 2: "),
    ],
)
def test_document_beyond_a_bound_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(NotReadable) as refusal:
        load(text)

    assert str(refusal.value).startswith(message)


def test_documents_at_the_bounds_are_read() -> None:
    deep = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)

    assert load(deep)
    assert len(load("[" + "1, " * (MAX_VALUES - 1) + "]")) == MAX_VALUES - 1
    assert len(load("[" + "1, " * 9000 + "]", Bounds(values=9001))) == 9000


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_dumped_values_load_unchanged(value: Any) -> None:
    assert load(yaml.safe_dump(value)) == value
