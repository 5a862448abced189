"""Python and torch of this machine. torch is asked in a process of its own: it takes seconds and a lot of memory."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.doctor.findings import Finding, ok, warning

ASK_S: Final = 120.0
"""How long torch may take to say what it can; a cold disk takes half a minute."""


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _ask_torch() -> str:
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast_worker", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=ASK_S,
    )
    return answer.stdout


def check_machine(
    has_torch: Callable[[], bool] = _has_torch, ask_torch: Callable[[], str] = _ask_torch
) -> Iterator[Finding]:
    """Python, and torch if it is installed."""
    yield ok("python", platform.python_version())
    if not has_torch():
        yield ok(
            "torch", "not installed here, where only nodes of `infra: local` jobs would need it"
        )
        return
    try:
        told = json.loads(ask_torch())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield warning(
            "torch",
            f"installed, and does not work: {_words(error)}",
            "pip install --force-reinstall torch",
        )
        return
    yield from _torch(told)


def _torch(told: dict[str, Any]) -> Iterator[Finding]:
    """The four things that one wants to know before a first run."""
    yield ok("torch", told["torch"])
    if told["gpus"]:
        driver = f", driver {told['driver']}" if told["driver"] else ""
        yield ok("cuda", f"{told['cuda']}{driver}")
    else:
        yield ok("cuda", "none that can be used here, so ranks compute on CPUs and talk over gloo")
    signs = (f"{name} {'✓' if there else '✗'}" for name, there in told["backends"].items())
    yield ok("backends", " · ".join(signs))
    names = ", ".join(dict.fromkeys(told["gpus"]))
    yield ok("gpus", f"{len(told['gpus'])}" + f" ({names})" * bool(names))


def _words(error: Exception) -> str:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return (said or str(error)).strip().splitlines()[-1]
