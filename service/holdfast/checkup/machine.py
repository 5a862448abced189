"""Python and torch of this machine. torch is asked in a process of its own: it takes seconds and a lot of memory."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.checkup.findings import Finding, ok, warning

ASK_S: Final = 120.0
"""How long torch may take to say what it can; a cold disk takes half a minute."""
_ASK: Final = """
import json, torch, torch.distributed as spread
there = spread.is_available()
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda if torch.cuda.is_available() else None,
    "gpus": torch.cuda.device_count(),
    "backends": {
        "gloo": there and spread.is_gloo_available(),
        "nccl": there and spread.is_nccl_available(),
        "mpi": there and spread.is_mpi_available(),
    },
}))
"""


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _ask_torch() -> str:
    answer = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, check=True, timeout=ASK_S
    )
    return answer.stdout


def look_at_machine(
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
    yield ok("torch", _torch(told))


def _torch(told: dict[str, Any]) -> str:
    signs = " ".join(f"{name} {'✓' if there else '✗'}" for name, there in told["backends"].items())
    cuda = f"CUDA {told['cuda']}" if told["cuda"] else "CUDA none, so gloo is used"
    return f"{told['torch']} · {cuda} · backends {signs} · GPUs {told['gpus']}"


def _words(error: Exception) -> str:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return (said or str(error)).strip().splitlines()[-1]
