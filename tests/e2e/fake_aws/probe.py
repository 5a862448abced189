"""The one change made to SkyPilot: where it looks to see whether "the network is up".

Before every status check its jobs controller asks https://8.8.8.8 and https://1.1.1.1, and skips the check when both are
silent: without a route out a preempted job stays RUNNING for ever. build.py puts this module and a `.pth` file that
imports it into SkyPilot's environment, as PYTHONPATH does not reach controllers.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PATCHED = "sky.backends.backend_utils"


class Probe(MetaPathFinder):
    """Finds one module, once, and wraps its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the patched module; None for all others."""
        if fullname != PATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Patching(spec.loader)
        return spec


class _Patching(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        assert hasattr(module, "_TEST_IP_LIST"), "SkyPilot asks for the network in another way now"
        vars(module)["_TEST_IP_LIST"] = [f"{os.environ['AWS_ENDPOINT_URL']}/skycloud/ping"]


if "AWS_ENDPOINT_URL" in os.environ:
    sys.meta_path.insert(0, Probe())
