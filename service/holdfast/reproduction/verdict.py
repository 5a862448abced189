"""Whether a run came to the same result as another. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Likeness(StrEnum):
    """How like two results are."""

    IDENTICAL = "identical"
    """The weights are the same, bit for bit."""
    CLOSE = "close"
    """The weights are others, and what was logged last is within what was allowed."""
    OTHER = "other"
    """What was logged last is other than allowed, or was logged by one of the two alone."""
    UNKNOWN = "unknown"
    """One of the two has no result, or they are not of the same step."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Two results side by side."""

    likeness: Likeness
    why: str
    """The same as a sentence."""
    values: Mapping[str, tuple[float | None, float | None]]
    """What both logged last, by name."""


def compare(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, within: float) -> Verdict:  # fmt: skip
    """The verdict on two results, as manifests hold them; values may differ by such a share of the first."""
    if not before or not after:
        which = "the first run" if not before else "this run"
        return Verdict(Likeness.UNKNOWN, f"{which} has saved no weights to be compared", {})
    if before.get("step") != after.get("step"):
        why = f"one came to step {before.get('step')}, the other to step {after.get('step')}"
        return Verdict(Likeness.UNKNOWN, why, {})
    old, new = before.get("metrics") or {}, after.get("metrics") or {}
    values = {name: (old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())}
    if before.get("weights_sha256") == after.get("weights_sha256"):
        step = before.get("step")
        return Verdict(Likeness.IDENTICAL, f"after step {step} the weights are the same, bit for bit", values)  # fmt: skip
    if not values:
        return Verdict(Likeness.OTHER, "the weights are others, and neither run logged a number", values)  # fmt: skip
    far = [name for name, (a, b) in values.items() if not _is_close(a, b, within)]
    if far:
        told = ", ".join(f"{name}: {values[name][0]} -> {values[name][1]}" for name in far)
        return Verdict(Likeness.OTHER, f"the weights are others, and so is {told}", values)
    return Verdict(Likeness.CLOSE, f"the weights are others; what was logged is within {within:.2%}", values)  # fmt: skip


def _is_close(a: float | None, b: float | None, within: float) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=within, abs_tol=1e-12)
