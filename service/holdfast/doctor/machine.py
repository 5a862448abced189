"""Checks of Python and torch on this machine.

torch runs in a separate process, as it needs seconds and much memory.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.doctor.findings import Finding, ok, warning

TORCH_TIMEOUT_S: Final = 120.0
"""Seconds for torch to report its features; a cold disk takes half a minute."""


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _torch_report() -> str:
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast_worker", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=TORCH_TIMEOUT_S,
    )
    return answer.stdout


def check_machine(
    has_torch: Callable[[], bool] = _has_torch, ask_torch: Callable[[], str] = _torch_report
) -> Iterator[Finding]:
    """Check Python, and torch if it is installed."""
    yield ok("python", platform.python_version())
    if not has_torch():
        yield ok("torch", "not installed here; only nodes of `infra: local` jobs need it")
        return
    try:
        features = json.loads(ask_torch())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield warning(
            "torch",
            f"installed, but does not work: {_error_text(error)}",
            "pip install --force-reinstall torch",
        )
        return
    yield from _torch(features)


def _torch(features: dict[str, Any]) -> Iterator[Finding]:
    """Report the four facts that matter before a first run."""
    yield ok("torch", features["torch"])
    if features["gpus"]:
        driver = f", driver {features['driver']}" if features["driver"] else ""
        yield ok("cuda", f"{features['cuda']}{driver}")
    else:
        yield ok("cuda", "none usable here, so ranks compute on CPUs and communicate over gloo")
    signs = (f"{name} {'✓' if there else '✗'}" for name, there in features["backends"].items())
    yield ok("backends", " · ".join(signs))
    names = ", ".join(dict.fromkeys(features["gpus"]))
    yield ok("gpus", f"{len(features['gpus'])}" + f" ({names})" * bool(names))


def _error_text(error: Exception) -> str:
    stderr = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return (stderr or str(error)).strip().splitlines()[-1]
