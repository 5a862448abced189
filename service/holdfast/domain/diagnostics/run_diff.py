"""Differences between two runs, the likeliest explanations first.

The order follows how often a category explains a slower or worse run: transport, machines, software stack, code, configuration,
then the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.domain.billing.bill import Bill

_CATEGORIES: Final = (
    ("transport", "nccl_transport", "nccl_interfaces", "gpu_links.", "backend", "environment.NCCL_", "environment.GLOO_"),
    ("machines", "device", "gpus", "gpus_per_node", "world_size", "nodes", "holdfast.instance_type"),
    ("stack", "driver", "cuda", "cudnn", "nccl", "torch", "lock.torch", "lock.nvidia-", "lock.triton"),
    ("code", "git_commit", "git_dirty", "script", "script_sha256", "holdfast.run", "holdfast.image", "holdfast.job_file.setup"),
    ("configuration", "config.", "loader.", "seed", "deterministic", "holdfast.resources", "holdfast.num_nodes", "holdfast.job_file."),
    ("packages", "lock."),
)  # fmt: skip
_OTHER_CATEGORY: Final = "surroundings"
_IDENTITY_KEYS: Final = frozenset({"format", "holdfast.job", "holdfast.attempt", "holdfast.at", "holdfast.name"})  # fmt: skip
"""Keys that identify a run and explain nothing."""
_DUPLICATES: Final = (
    "holdfast.result",
    *(f"holdfast.job_file.{word}" for word in ("name", "run", "num_nodes", "resources", "workdir")),
    "holdfast.job_file.holdfast.tags",
)
"""Keys that repeat other parts of the manifest or explain nothing, and the result, which is to be explained."""
ABSENT: Final = None
"""Value of a key that a manifest does not have."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One key whose value differs between two runs."""

    category: str
    """transport, machines, stack, code, configuration, packages or surroundings."""
    key: str
    """Dotted path in the manifest; for a package, `lock.` and its name."""
    before: Any
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """All differences between two manifests, the likeliest explanations first."""
    old, new = dict(_flatten(before)), dict(_flatten(after))
    found = [
        Difference(_rank_key(key)[1], key, old.get(key, ABSENT), new.get(key, ABSENT))
        for key in old.keys() | new.keys()
        if old.get(key, ABSENT) != new.get(key, ABSENT)
        and key not in _IDENTITY_KEYS
        and not key.startswith(_DUPLICATES)
    ]
    return sorted(found, key=lambda one: (_rank_key(one.key)[0], one.key))


def steps_per_hour(account: Bill) -> float | None:
    """Steps per hour of useful time; None without useful time or reported steps."""
    steps, useful_ms = 0, 0
    for attempt in account.attempts:
        if attempt.first_step is not None and attempt.last_step is not None:
            steps += attempt.last_step - attempt.first_step - attempt.lost_steps
            useful_ms += attempt.ms.useful
    return 3_600_000 * steps / useful_ms if steps > 0 and useful_ms else None


def _flatten(manifest: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in manifest.items():
        key = f"{prefix}{name}"
        if key == "lock" and isinstance(value, Sequence):
            for line in value:
                package, _, version = str(line).partition("==")
                yield f"lock.{package}", version
        elif isinstance(value, Mapping):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _rank_key(key: str) -> tuple[int, str]:
    """Rank and name of the category of a key."""
    for rank, (category, *keys) in enumerate(_CATEGORIES):
        if any(key.startswith(one) if one[-1] in ".-_" else key == one for one in keys):
            return rank, category
    if key.startswith(("holdfast.resources.", "holdfast.num_nodes.")):
        return _rank_key("holdfast.resources")
    return len(_CATEGORIES), _OTHER_CATEGORY
