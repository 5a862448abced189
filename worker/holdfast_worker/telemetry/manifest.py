"""The manifest of a run: code, configuration, packages and machines, as seen by rank 0.

A comparison of two manifests explains why one run is slower or worse than the other.
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
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from holdfast_worker.config import Config, environment
from holdfast_worker.distributed.nccl_transport import parse_logs, parse_topology
from holdfast_worker.protocol.reports import Json
from holdfast_worker.run_dir import RunDir
from holdfast_worker.topology.nodes import Topology

FORMAT: Final = 1
"""Version of the manifest, increased when the meaning of a key changes."""
MAX_CONFIG_CHARS: Final = 64 * 1024
"""Characters of a configuration as JSON.
A lower value rejects detailed ones; with a higher value the service rejects the report."""
_LOADER_SETTINGS: Final = ("batch_size", "num_workers", "prefetch_factor", "pin_memory")
_FIELD: Final = re.compile(r"^(Name|Version): *(.*?)\s*$", re.MULTILINE | re.IGNORECASE)
"""Fields of a distribution's metadata: https://packaging.python.org/specifications/core-metadata."""
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_COMMAND_TIMEOUT_S: Final = 10.0
"""Timeout of a command of git or a driver.
A lower value fails on a slow one; a higher value delays a start if one hangs."""
_MAX_NCCL_LOG_CHARS: Final = 4 * 1024 * 1024
"""Characters of NCCL's log that are read, from its start.
A lower value may miss connections; a higher value delays a start."""


class TrackedObjects(Protocol):
    """What the manifest says about the tracked objects of a run."""

    @property
    def per_rank(self) -> list[str]:
        """Names of the objects with one state for each rank."""
        ...


@dataclass
class Manifest:
    """Collects the manifest of a run."""

    _settings: Config
    config: dict[str, Json] = field(default_factory=dict)
    """Values from the script, by `add_config`."""
    script: Path = field(default_factory=lambda: Path(sys.argv[0]).resolve())
    loader: dict[str, Json] = field(default_factory=dict)
    """Settings of the loader, if it has those of a `DataLoader`; empty before the loop."""
    tracked: TrackedObjects | None = None
    """None before `track`, and without a call of it."""

    def add_config(self, config: Mapping[str, object]) -> None:
        """Add values of the script, on every rank, so that an error ends all of them.

        Raises:
            ValueError: the configuration is too large.
        """
        self.config = _to_json({**self.config, **config})

    def add_loader(self, loader: object) -> None:
        """Add the settings of a loader."""
        found = {name: getattr(loader, name, None) for name in _LOADER_SETTINGS}
        self.loader = {name: value for name, value in found.items() if isinstance(value, int)}

    def collect(self, device: torch.device) -> dict[str, Json]:
        """The manifest of a run on a device; `docs/reference/manifest.md` describes the keys."""
        return {
            "format": FORMAT,
            "config": {**self.config},
            **_cluster(self._settings),
            "seed": self._settings.seed,
            "loader": {**self.loader},
            "per_rank": [*self.tracked.per_rank] if self.tracked else None,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            **_code(self.script),
            "backend": dist.get_backend() if dist.is_initialized() else None,
            "device": device.type,
            **_transport(self._settings),
            "environment": _relevant_variables(environment()),
            **machine(),
        }


def machine() -> dict[str, Json]:
    """Versions, GPUs and packages of this machine."""
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
        "lock": installed_packages(),
    }


def installed_packages() -> list[Json]:
    """Every installed distribution as `name==version`, sorted."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        # Python parses descriptions, too, which takes a third of a second at each start of a run.
        head = (one.read_text("METADATA") or one.read_text("PKG-INFO") or "").partition("\n\n")[0]
        fields = {name.lower(): value for name, value in _FIELD.findall(head)}
        if name := fields.get("name"):
            # The first on the path is the one that is imported.
            found.setdefault(_normalize(name), fields.get("version", ""))
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _to_json(config: Mapping[str, Any]) -> dict[str, Json]:
    # Other types become text; NaN and NUL are replaced, as some JSON parsers reject them.
    text = json.dumps(config, default=str).replace("\\u0000", "?")
    if len(text) > MAX_CONFIG_CHARS:
        raise ValueError(
            f"the configuration of the run has {len(text):,} characters of JSON, but at most {MAX_CONFIG_CHARS:,} are allowed: "
            "describe settings, not data"
        )
    plain: dict[str, Json] = json.loads(text, parse_constant=str)
    return plain


def _cluster(config: Config) -> dict[str, Json]:
    """Number of ranks and nodes."""
    try:
        nodes = Topology.read(environment()).nodes
    except ValueError:
        nodes = 1
    groups = environment().get("GROUP_WORLD_SIZE", "")  # Torchrun's number of nodes.
    return {
        "world_size": config.world_size,
        "nodes": max(nodes, int(groups) if groups.isdecimal() else 1),
    }


def _code(script: Path) -> dict[str, Json]:
    try:
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:  # For example in an interactive session.
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


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git; None without git or a repository."""
    return _command_output("git", "-C", str(folder), *arguments)


def _command_output(*arguments: str) -> str | None:
    """The output of a program; None if it is missing, fails or times out."""
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _transport(config: Config) -> dict[str, Json]:
    """The transports from NCCL's log of this rank, and the links between its GPUs."""
    if not torch.cuda.is_available():
        return {"nccl_transport": None, "nccl_interfaces": [], "gpu_links": {}}
    found = parse_logs(_nccl_log(config))
    topology = _command_output("nvidia-smi", "topo", "-m") or ""
    return {
        "nccl_transport": found.summary,
        "nccl_interfaces": [*found.interfaces],
        "gpu_links": {**parse_topology(topology)},
    }


def _nccl_log(config: Config) -> list[str]:
    """NCCL's log of this process; without a configured file, the output of the rank so far."""
    named = environment().get("NCCL_DEBUG_FILE")
    own = {"%p": str(os.getpid()), "%h": platform.node().partition(".")[0]}
    if named:
        place = Path(re.sub("%[ph]", lambda found: own[found[0]], named))
    elif config.run_dir:
        place = RunDir(config.run_dir).log_file(config.rank)
    else:
        return []
    try:
        with place.open(errors="replace") as file:
            return file.read(_MAX_NCCL_LOG_CHARS).splitlines()
    except OSError:
        return []


def _driver() -> str | None:
    try:
        found = re.search(r"(\d+\.\d+(?:\.\d+)?)", _DRIVER.read_text().partition("\n")[0])
    except OSError:
        return None
    return found[1] if found else None


def _relevant_variables(env: Mapping[str, str]) -> Json:
    """Variables that affect results or speed, and contain no secrets."""
    relevant = re.compile(r"(NCCL|GLOO|OMP|MKL|CUBLAS|TORCH|CUDA|PYTORCH)_[A-Z0-9_]+")
    # Log files and log levels do not affect the run.
    return {
        name: value
        for name, value in sorted(env.items())
        if relevant.fullmatch(name)
        and not name.endswith("_FILE")
        and not name.startswith("NCCL_DEBUG")
    }


def _normalize(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
