"""Mutable image tags are distinguished from fixed ones."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.jobfile.lint import image_notes, is_pinned
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.rendering import render

DIGEST = "sha256:" + "9f" * 32


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        (None, None),
        ("ami-0123456789abcdef0", True),
        ("docker:pytorch/pytorch", False),
        ("docker:pytorch/pytorch:2.9.0-cuda12.8", False),
        (f"docker:ghcr.io/me/book@{DIGEST}", True),
        (f"docker:ghcr.io/me/book:2@{DIGEST}", True),
        ("docker:ghcr.io/me/book@sha256:9f2c", False),
        ({"us-east-1": "ami-1", "us-west-2": "ami-2"}, True),
        ({"us-east-1": "ami-1", "us-west-2": "docker:me/book:2"}, False),
    ],
)
def test_digest_and_machine_image_are_fixed_tags_are_not(image: Any, pinned: Any) -> None:
    notes = list(image_notes({"image_id": image} if image else {}))

    assert is_pinned(image) is pinned
    assert bool(notes) is (pinned is False)


@pytest.mark.parametrize(
    ("image", "remedy"),
    [
        ("docker:localhost:5000/me/book:2", "docker:localhost:5000/me/book@sha256:..."),
        ("docker:book", "docker:book@sha256:..."),
        ("docker:book:2", "docker:book@sha256:..."),
    ],
)
def test_tag_note_suggests_the_digest_form(image: str, remedy: str) -> None:
    (note,) = image_notes({"image_id": image})

    assert f"write {remedy} as" in note
    assert image.removeprefix("docker:") in note


def test_tag_note_appears_once_for_all_candidates() -> None:
    file = """
run: python train.py
resources:
  image_id: docker:pytorch/pytorch:2.9.0
  any_of: [{infra: aws}, {infra: gcp}]
"""

    notes = [n for n in render(parse_job_file(file).spec).notes if "image_id" in n]

    assert len(notes) == 1
    assert "is a tag and may change" in notes[0]
