"""What is other in one run than in another, what explains most first.

The order is that of how often a thing explains a slower or a worse run: how ranks talk, what they compute on, what the numbers are
made with, what was asked for, and only then the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.domain.billing.ledger import Bill

_FIRST: Final = (
    ("transport", "nccl_transport", "nccl_interfaces", "gpu_links.", "backend", "environment.NCCL_", "environment.GLOO_"),
    ("machines", "device", "gpus", "gpus_per_node", "world_size", "nodes", "holdfast.instance_type"),
    ("stack", "driver", "cuda", "cudnn", "nccl", "torch", "lock.torch", "lock.nvidia-", "lock.triton"),
    ("code", "git_commit", "git_dirty", "script", "script_sha256", "holdfast.run", "holdfast.image", "holdfast.job_file.setup"),
    ("configuration", "config.", "loader.", "seed", "deterministic", "holdfast.resources", "holdfast.num_nodes", "holdfast.job_file."),
    ("packages", "lock."),
)  # fmt: skip
_REST: Final = "surroundings"
_ITSELF: Final = frozenset({"format", "holdfast.job", "holdfast.attempt", "holdfast.at", "holdfast.name"})  # fmt: skip
"""What tells one run from another, and explains nothing."""
_TWICE: Final = (
    "holdfast.result",
    *(f"holdfast.job_file.{word}" for word in ("name", "run", "num_nodes", "resources", "workdir")),
    "holdfast.job_file.holdfast.tags",
)
"""What of a job file stands elsewhere in the manifest, or explains nothing; and what a run came to, which is to be explained."""
ABSENT: Final = None
"""A value that was not told."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is other."""

    kind: str
    """transport, machines, stack, code, configuration, packages or surroundings."""
    key: str
    """Its place in the manifest, with dots between; of a package, its name after `lock.`."""
    before: Any
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """All that is other in the second of two manifests, what explains most first."""
    old, new = dict(_flat(before)), dict(_flat(after))
    found = [
        Difference(_place(key)[1], key, old.get(key, ABSENT), new.get(key, ABSENT))
        for key in old.keys() | new.keys()
        if old.get(key, ABSENT) != new.get(key, ABSENT)
        and key not in _ITSELF
        and not key.startswith(_TWICE)
    ]
    return sorted(found, key=lambda one: (_place(one.key)[0], one.key))


def pace(account: Bill) -> float | None:
    """Steps for each hour of useful time; None where there was none, or nobody told of steps."""
    steps, useful_ms = 0, 0
    for attempt in account.attempts:
        if attempt.first_step is not None and attempt.last_step is not None:
            steps += attempt.last_step - attempt.first_step - attempt.lost_steps
            useful_ms += attempt.ms.useful
    return 3_600_000 * steps / useful_ms if steps > 0 and useful_ms else None


def _flat(manifest: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in manifest.items():
        key = f"{prefix}{name}"
        if key == "lock" and isinstance(value, Sequence):
            for line in value:
                package, _, version = str(line).partition("==")
                yield f"lock.{package}", version
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _place(key: str) -> tuple[int, str]:
    """How far down a key stands, and of which kind it is."""
    for at, (kind, *keys) in enumerate(_FIRST):
        if any(key.startswith(one) if one[-1] in ".-_" else key == one for one in keys):
            return at, kind
    if key.startswith("holdfast.resources."):
        return _place("holdfast.resources")
    return len(_FIRST), _REST
