"""Labels that clouds accept: tags of a job, put into the words that AWS, GCP and Kubernetes all understand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

NAME_LABEL: Final = "holdfast-name"
"""The label that tells the job's name, so that a bill of the cloud can be read."""
LONGEST: Final = 63
"""Characters of a key and of a value on GCP and Kubernetes."""

# What SkyPilot 0.14.1 holds labels against before it launches: `is_label_valid` of its clouds.
_RULES: Final = {
    "aws": (r"(?!aws:)\S{1,127}", r"\S{0,255}"),
    "gcp": (r"[a-z][a-z0-9_-]{0,62}", r"[a-z0-9_-]{0,63}"),
    "kubernetes": (
        r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?",
        r"([a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?)?",
    ),
}


def labels_of(name: str, tags: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The labels of a job, and a sentence for each tag that looks different as one."""
    labels, notes = {NAME_LABEL: _fit(name)}, list[str]()
    for key, value in tags.items():
        fitting = _fit(key).lstrip("0123456789-_")
        if not fitting:
            notes.append(f"holdfast.tags: {key!r} has no letter that a cloud accepts in a label")
            continue
        labels[fitting] = _fit(value)
        if (fitting, labels[fitting]) != (key, value):
            notes.append(
                f"holdfast.tags: clouds accept {key}={value} only as the label {fitting}={labels[fitting]}"
            )
    return labels, tuple(notes)


def problem(cloud: str | None, key: str, value: str) -> str | None:
    """Why a cloud refuses a label; None: it takes it, or its rule is not known."""
    if cloud not in _RULES:
        return None
    of_key, of_value = _RULES[cloud]
    if not re.fullmatch(of_key, key):
        return f"{key!r} is no name of a label on {cloud}; take lower-case letters, digits and -"
    if not re.fullmatch(of_value, value):
        return f"{value!r} is no value of a label on {cloud}; take lower-case letters, digits and -"
    return None


def _fit(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:LONGEST].strip("-_")
