"""Errors have a readable message, a status and a unique name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from holdfast.errors import BadJobFile, HoldfastError, StaleWrite, ValidationIssue


def family(error: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield error
    for child in error.__subclasses__():
        yield from family(child)


ERRORS = sorted(set(family(HoldfastError)), key=lambda error: error.__name__)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_a_title_and_a_status(error: type[HoldfastError]) -> None:
    assert error.title().endswith(".")
    assert error.title()[0].isupper()
    assert "\n" not in error.title()
    assert 400 <= error.status < 600
    assert 1 <= error.exit_code <= 125


def test_every_error_has_a_unique_name() -> None:
    slugs = [error.slug() for error in ERRORS]

    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", slug) for slug in slugs)


def test_renamed_errors_keep_their_published_names() -> None:
    ours = [error for error in ERRORS if error.__module__ == "holdfast.errors"]

    assert {error.__name__: error.slug() for error in ours if error.published_slug} == {
        "CheckpointStoreRefused": "depot-refused",
        "CheckpointStoreUnreachable": "depot-unreachable",
        "NotObservedYet": "not-looked-yet",
        "NotRegistered": "not-mustered",
    }


def test_error_without_detail_shows_its_title() -> None:
    assert (
        str(StaleWrite())
        == "The job was changed at the same time; read it again before you repeat the request."
    )
    assert str(StaleWrite("job-1 moved")) == "job-1 moved"
    assert StaleWrite.slug() == "stale-write"


def test_invalid_file_error_lists_every_problem() -> None:
    error = BadJobFile(
        (ValidationIssue("#/run", "is missing"), ValidationIssue("#/nmae", "is not known"))
    )

    assert error.detail == "#/run: is missing; #/nmae: is not known"
