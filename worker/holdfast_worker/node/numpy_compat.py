"""NumPy 2 for releases of `datasets` that were written for NumPy 1.

They call `np.array(..., copy=False)` for "copy only if necessary"; NumPy 2 raises an error if a copy is necessary.
The patch affects the one module of `datasets` that formats rows as arrays, and only on nodes with both packages.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from holdfast_worker.console import log_info

PATCHED: Final = "datasets.formatting.formatting"
SUPPORTS_NUMPY_2: Final = (2, 21)
"""First release of `datasets` that works with NumPy 2."""


def install() -> None:
    """Patch `datasets` when it is imported, if the installed releases need it."""
    if _release("numpy") >= (2, 0) and (0, 0) < _release("datasets") < SUPPORTS_NUMPY_2:
        sys.meta_path.insert(0, _PatchingFinder())


class _PatchingFinder(MetaPathFinder):
    """Finds the module to be patched, once, and replaces its NumPy after it was executed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != PATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            module.np = _NumPy1Copies("numpy")  # type: ignore[attr-defined]
            versions = f"datasets {metadata.version('datasets')}, NumPy {metadata.version('numpy')}"
            log_info(f"NumPy 2 patch applied ({versions})")

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


class _NumPy1Copies(ModuleType):
    """NumPy with an `array(..., copy=False)` that copies if necessary."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["numpy"], name)

    @staticmethod
    def array(value: Any, *args: Any, copy: bool | None = True, **options: Any) -> Any:
        """Call `numpy.array`; `copy=False` means the same as in NumPy 1."""
        return sys.modules["numpy"].array(value, *args, copy=copy or None, **options)


def _release(package: str) -> tuple[int, int]:
    """Return major and minor version of an installed package; zeros if unknown."""
    try:
        major, minor = metadata.version(package).split(".")[:2]
        return int(major), int(minor)
    except (metadata.PackageNotFoundError, ValueError):
        return 0, 0
