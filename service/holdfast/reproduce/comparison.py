"""What is other on this machine than where a run was made.

Whether a run came to the same result as another. Pure.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.diagnostics.run_diff import Difference, differences

ASK_S: Final = 120.0
"""How long torch may take to come up; a cold disk takes half a minute."""


def ask_machine() -> str:
    """What `holdfast-worker doctor` says of this machine, as JSON.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it fails, as where there is no torch.
    """
    words = [sys.executable, "-P", "-m", "holdfast_worker", "doctor", "--json"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=ASK_S).stdout


def others_here(
    manifest: Mapping[str, Any], *, with_packages: bool, ask: Callable[[], str] = ask_machine
) -> list[Difference] | None:
    """What is other here, what explains most first; None where this machine could not be asked."""
    try:
        here = json.loads(ask())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    known = here.keys() - ({"backends"} if with_packages else {"backends", "lock", "torch"})
    then = {key: manifest[key] for key in known & manifest.keys()}
    return differences(then, {key: here[key] for key in then})


class ResultComparison(StrEnum):
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
class ComparisonResult:
    """Two results side by side."""

    likeness: ResultComparison
    why: str
    """The same as a sentence."""
    values: Mapping[str, tuple[float | None, float | None]]
    """What both logged last, by name."""


def compare(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, within: float) -> ComparisonResult:  # fmt: skip
    """The verdict on two results, as manifests hold them; values may differ by such a share of the first."""
    if not before or not after:
        which = "the first run" if not before else "this run"
        return ComparisonResult(
            ResultComparison.UNKNOWN, f"{which} has saved no weights to be compared", {}
        )
    if before.get("step") != after.get("step"):
        why = f"one came to step {before.get('step')}, the other to step {after.get('step')}"
        return ComparisonResult(ResultComparison.UNKNOWN, why, {})
    old, new = before.get("metrics") or {}, after.get("metrics") or {}
    values = {name: (old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())}
    if before.get("weights_sha256") == after.get("weights_sha256"):
        step = before.get("step")
        return ComparisonResult(ResultComparison.IDENTICAL, f"after step {step} the weights are the same, bit for bit", values)  # fmt: skip
    if not values:
        return ComparisonResult(ResultComparison.OTHER, "the weights are others, and neither run logged a number", values)  # fmt: skip
    far = [name for name, (a, b) in values.items() if not _is_close(a, b, within)]
    if far:
        told = ", ".join(f"{name}: {values[name][0]} -> {values[name][1]}" for name in far)
        return ComparisonResult(
            ResultComparison.OTHER, f"the weights are others, and so is {told}", values
        )
    return ComparisonResult(ResultComparison.CLOSE, f"the weights are others; what was logged is within {within:.2%}", values)  # fmt: skip


def _is_close(a: float | None, b: float | None, within: float) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=within, abs_tol=1e-12)
