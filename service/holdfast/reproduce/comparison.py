"""Differences between this machine and the original one, and between two results."""

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

DOCTOR_TIMEOUT_S: Final = 120.0
"""Seconds for torch to start; a cold disk takes half a minute."""


def describe_machine() -> str:
    """Return the report of `holdfast-worker doctor` about this machine as JSON.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it failed, as without torch.
    """
    words = [sys.executable, "-P", "-m", "holdfast_worker", "doctor", "--json"]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=DOCTOR_TIMEOUT_S
    ).stdout


def machine_differences(
    manifest: Mapping[str, Any], *, with_packages: bool, ask: Callable[[], str] = describe_machine
) -> list[Difference] | None:
    """List differences of this machine, most relevant first; None if it could not be examined."""
    try:
        here = json.loads(ask())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    known = here.keys() - ({"backends"} if with_packages else {"backends", "lock", "torch"})
    then = {key: manifest[key] for key in known & manifest.keys()}
    return differences(then, {key: here[key] for key in then})


class ResultComparison(StrEnum):
    """Similarity of two results."""

    IDENTICAL = "identical"
    """The weights are identical, bit for bit."""
    CLOSE = "close"
    """The weights differ, and the last logged values are within the tolerance."""
    OTHER = "other"
    """The last logged values differ by more than the tolerance, or only one run logged them."""
    UNKNOWN = "unknown"
    """One run has no result, or they are of different steps."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Comparison of two results."""

    outcome: ResultComparison
    reason: str
    """The result as a sentence."""
    values: Mapping[str, tuple[float | None, float | None]]
    """Last values that both logged, by name."""


def compare(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, within: float) -> ComparisonResult:  # fmt: skip
    """Compare two results from manifests; values may differ by the share `within` of the first."""
    if not before or not after:
        which = "the first run" if not before else "this run"
        return ComparisonResult(
            ResultComparison.UNKNOWN, f"{which} has saved no weights to compare", {}
        )
    if before.get("step") != after.get("step"):
        why = f"one run reached step {before.get('step')}, the other step {after.get('step')}"
        return ComparisonResult(ResultComparison.UNKNOWN, why, {})
    old, new = before.get("metrics") or {}, after.get("metrics") or {}
    values = {name: (old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())}
    if before.get("weights_sha256") == after.get("weights_sha256"):
        step = before.get("step")
        return ComparisonResult(ResultComparison.IDENTICAL, f"after step {step} the weights are identical, bit for bit", values)  # fmt: skip
    if not values:
        return ComparisonResult(ResultComparison.OTHER, "the weights differ, and neither run logged a number", values)  # fmt: skip
    far = [name for name, (a, b) in values.items() if not _is_close(a, b, within)]
    if far:
        differing = ", ".join(f"{name}: {values[name][0]} -> {values[name][1]}" for name in far)
        return ComparisonResult(
            ResultComparison.OTHER, f"the weights differ, and so does {differing}", values
        )
    return ComparisonResult(ResultComparison.CLOSE, f"the weights differ; the logged values are within {within:.2%}", values)  # fmt: skip


def _is_close(a: float | None, b: float | None, within: float) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=within, abs_tol=1e-12)
