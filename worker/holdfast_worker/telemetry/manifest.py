"""The manifest of a run: what its numbers came from, as far as the first rank can tell.

A run that is slower or worse than an earlier one is explained by what is other in its manifest, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from holdfast_worker.config import Config, environment
from holdfast_worker.distributed.nccl_transport import links, read
from holdfast_worker.protocol.reports import Json
from holdfast_worker.run_dir import RunDir
from holdfast_worker.topology.nodes import Topology

FORMAT: Final = 1
"""Raised whenever a key comes to mean something else."""
LONGEST_CONFIG: Final = 64 * 1024
"""Characters of a configuration as JSON. Bigger: the service refuses the report, and nothing is known of the run."""
_LOADING: Final = ("batch_size", "num_workers", "prefetch_factor", "pin_memory")
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_ASKED_S: Final = 10.0
"""For one question to git or a driver. Longer holds up a start for a repository on a network that hangs."""
_MOST_SAID: Final = 4 * 1024 * 1024
"""Characters of what NCCL wrote, from its beginning. More hold up a start, fewer may end before its connections are told."""


@dataclass
class Manifest:
    """What is known of a run."""

    _of: Config
    config: dict[str, Json] = field(default_factory=dict)
    """As the script told it, by `add`."""
    script: Path = field(default_factory=lambda: Path(sys.argv[0]).resolve())
    loader: dict[str, Json] = field(default_factory=dict)
    """How the loader loads, as far as it says so as a `DataLoader` does; empty before the loop."""

    def add(self, config: Mapping[str, object]) -> None:
        """Keep what a script tells. Every rank does, so that what cannot be kept ends all of them, and not the first alone.

        Raises:
            ValueError: it is too much.
        """
        self.config = _plain({**self.config, **config})

    def see(self, loader: object) -> None:
        """Keep how a loader loads."""
        found = {name: getattr(loader, name, None) for name in _LOADING}
        self.loader = {name: value for name, value in found.items() if isinstance(value, int)}

    def told(self, device: torch.device) -> dict[str, Json]:
        """All of it, for a run on such a device: keys and their meaning are in `docs/reference/manifest.md`."""
        return {
            "format": FORMAT,
            "config": {**self.config},
            **_shape(self._of),
            "seed": self._of.seed,
            "loader": {**self.loader},
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            **_code(self.script),
            "backend": dist.get_backend() if dist.is_initialized() else None,
            "device": device.type,
            **_transport(self._of),
            "environment": _speaking(environment()),
            **machine(),
        }


def machine() -> dict[str, Json]:
    """What this machine computes with, whatever runs on it."""
    has_cuda = torch.cuda.is_available()
    nccl = torch.cuda.nccl.version() if has_cuda else ()  # type: ignore[no-untyped-call]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if has_cuda else None,  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, nccl)) or None,
        "gpus_per_node": torch.cuda.device_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "driver": _driver(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "lock": lock(),
    }


def lock() -> list[Json]:
    """Every installed distribution as `name==version`, in order."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        if name := one.metadata["Name"]:
            found.setdefault(
                _normal(name), one.version
            )  # The first on the path is the one that is imported.
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _plain(told: Mapping[str, Any]) -> dict[str, Json]:
    # What JSON cannot hold is there as text; neither NaN nor NUL is read by everybody.
    text = json.dumps(told, default=str).replace("\\u0000", "?")
    if len(text) > LONGEST_CONFIG:
        raise ValueError(
            f"the configuration of the run is {len(text):,} characters of JSON; at most {LONGEST_CONFIG:,} are kept: describe what "
            "matters, not the data"
        )
    plain: dict[str, Json] = json.loads(text, parse_constant=str)
    return plain


def _shape(config: Config) -> dict[str, Json]:
    """The cluster."""
    try:
        nodes = Topology.read(environment()).nodes
    except ValueError:
        nodes = 1
    groups = environment().get("GROUP_WORLD_SIZE", "")  # As torchrun counts nodes.
    return {
        "world_size": config.world_size,
        "nodes": max(nodes, int(groups) if groups.isdecimal() else 1),
    }


def _code(script: Path) -> dict[str, Json]:
    try:
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:  # As of what was typed at a prompt.
        digest = None
    folder = script.parent if script.is_file() else Path.cwd()
    commit = _git(folder, "rev-parse", "HEAD")
    changed = (
        None if commit is None else _git(folder, "status", "--porcelain", "--untracked-files=no")
    )
    return {
        "script": script.name,
        "script_sha256": digest,
        "git_commit": commit,
        "git_dirty": None if changed is None else bool(changed),
    }


def _git(folder: Path, *words: str) -> str | None:
    """What git says; None where there is no git, or no repository."""
    return _asked("git", "-C", str(folder), *words)


def _asked(*words: str) -> str | None:
    """What a program says; None where there is none, or it has nothing to say to this."""
    try:
        said = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=_ASKED_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() if said.returncode == 0 else None


def _transport(config: Config) -> dict[str, Json]:
    """How ranks talk, as far as NCCL has said it to this one, and how its GPUs are connected."""
    if not torch.cuda.is_available():
        return {"nccl_transport": None, "nccl_interfaces": [], "gpu_links": {}}
    found = read(_said(config))
    topology = _asked("nvidia-smi", "topo", "-m") or ""
    return {
        "nccl_transport": found.words,
        "nccl_interfaces": [*found.interfaces],
        "gpu_links": {**links(topology)},
    }


def _said(config: Config) -> list[str]:
    """What NCCL has written for this process; where nobody named a file, what the rank has printed so far."""
    named = environment().get("NCCL_DEBUG_FILE")
    own = {"%p": str(os.getpid()), "%h": platform.node().partition(".")[0]}
    if named:
        place = Path(re.sub("%[ph]", lambda found: own[found[0]], named))
    elif config.run_dir:
        place = RunDir(config.run_dir).log(config.rank)
    else:
        return []
    try:
        with place.open(errors="replace") as file:
            return file.read(_MOST_SAID).splitlines()
    except OSError:
        return []


def _driver() -> str | None:
    try:
        found = re.search(r"(\d+\.\d+(?:\.\d+)?)", _DRIVER.read_text().partition("\n")[0])
    except OSError:
        return None
    return found[1] if found else None


def _speaking(env: Mapping[str, str]) -> Json:
    """Variables that change what is computed or how fast, and hold nobody's secret."""
    asked = re.compile(r"(NCCL|GLOO|OMP|MKL|CUBLAS|TORCH|CUDA|PYTORCH)_[A-Z0-9_]+")
    # What is written down, and where, changes nothing.
    return {
        name: value
        for name, value in sorted(env.items())
        if asked.fullmatch(name)
        and not name.endswith("_FILE")
        and not name.startswith("NCCL_DEBUG")
    }


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
