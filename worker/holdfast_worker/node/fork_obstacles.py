"""Obstacles to forking the ranks of a node; each is a clause for a log line.

A fork has only the thread that forked it, and torch and the GPU driver do not work in a fork of a process that has used a GPU.
Also, a fork has the modules of its parent: variables that a script sets for an import, and modules of its own with the name of
one that is imported already, would have no effect.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

INTERPRETER_VARIABLES: Final = (
    "CUDA_INJECTION64_PATH",
    "PYTHONINSPECT",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHON_EXEC",
)
"""Variables of tools that follow a rank from the start of its interpreter, and of torchrun for a different interpreter."""

IMPORT_VARIABLES: Final = re.compile(
    r"""["']((?:OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NPY|TORCHDYNAMO|TORCHINDUCTOR|TORCH_(?!NCCL_|FR_)|PYTORCH|TRITON)_?[A-Z0-9_]+)["']"""
)
"""Variables that torch, NumPy and their libraries read when they are imported, as a script names them."""

GPU_DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/dxg")
"""Devices that a process has open once it has used a GPU."""


def before_imports(env: Mapping[str, str], script: Path) -> str:
    """The obstacle in the environment or in the script; empty without one."""
    if not sys.platform.startswith("linux"):
        return "they are forked only on Linux"
    for name in INTERPRETER_VARIABLES:
        if env.get(name):
            return f"{name} is set"
    text = script.read_text(errors="replace") if script.is_file() else ""
    if "environ" in text and (found := IMPORT_VARIABLES.search(text)):
        return f"{script} names {found[1]}, which is read during an import"
    return ""


def after_imports(script: Path) -> str:
    """The obstacle in the state of this process after the imports; empty without one."""
    if shadowed := _shadowed(script.resolve().parent):
        return f"{shadowed} beside {script} has the name of a module that is imported before"
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() or any(f.startswith(GPU_DEVICES) for f in _open_files()):
        return "a GPU was used during the imports"
    handler = sys.modules["torch.distributed.elastic.multiprocessing.subprocess_handler"]
    if not hasattr(handler.SubprocessHandler, "_popen"):
        return f"torchrun of torch {torch.__version__} starts ranks in a different way"
    return ""


def threads() -> str:
    """The obstacle after a first fork: threads of this process; empty without one.

    Threads of OpenBLAS are excepted: it ends its threads in a process that forks.
    """
    count = len([*Path("/proc/self/task").iterdir()])
    return f"the imports have started {count - 1} threads" if count > 1 else ""


def _shadowed(folder: Path) -> str:
    """A module in `folder` with the name of an imported one; empty without such a module."""
    for name, module in [*sys.modules.items()]:
        if "." in name or name == "__main__" or name in sys.builtin_module_names:
            continue
        found = PathFinder.find_spec(name, [str(folder)])
        origin = found and found.origin
        if origin and origin != getattr(module, "__file__", None):
            return Path(origin).name
    return ""


def _open_files() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            yield str(link.readlink())
        except OSError:  # The directory itself, which is closed by now.
            continue
