"""Manifests of a job: inputs, environment and placement of each attempt.

Its worker reports inputs and environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.events import (
    Event,
    NodesReady,
    Resized,
    RunDescribed,
    Submitted,
)
from holdfast.domain.events.values import Checkout
from holdfast.domain.jobfile.lint import is_pinned
from holdfast.domain.jobfile.spec import JobSpec


def manifests(job_id: str, facts: Iterable[Event]) -> dict[int, dict[str, Any]]:
    """The manifest of each attempt that reported one.

    The service adds its data under `holdfast`, with the resources that the attempt had.
    """
    described, ready = dict[int, RunDescribed](), dict[int, NodesReady]()
    asked = dict[int, JobSpec]()
    spec = JobSpec(name="job", run="none")
    checkout: Checkout | None = None
    saves = CheckpointHistory()
    for seq, fact in enumerate(facts, 1):
        saves.apply(seq, fact)
        if isinstance(fact, Submitted):
            spec, checkout = JobSpec.from_stored(fact.spec), fact.checkout
        elif isinstance(fact, Resized):
            spec = JobSpec.from_stored(fact.spec)
        elif isinstance(fact, RunDescribed):
            described[fact.attempt] = fact
            asked.setdefault(fact.attempt, spec)
        elif isinstance(fact, NodesReady):
            ready[fact.attempt] = fact
    return {
        attempt: {
            **fact.manifest,
            **_commit(fact.manifest, checkout),
            "holdfast": {
                "job": job_id,
                "attempt": attempt,
                "at": fact.at.isoformat(),
                **_requested(asked[attempt], checkout),
                **_placement(ready.get(attempt)),
                "result": _result(saves.newest()),
            },
        }
        for attempt, fact in sorted(described.items())
    }


def requirements_lock(manifest: Mapping[str, Any]) -> str:
    """Installed packages as a pip requirements file; empty if none were reported."""
    lines = manifest.get("lock")
    return "".join(f"{line}\n" for line in lines) if isinstance(lines, Sequence) else ""


def job_file(spec: JobSpec) -> dict[str, Any]:
    """The normalized job file, ready to be submitted again; secrets appear without values."""
    values = spec.model_dump(mode="json", exclude_defaults=True)
    more = values.pop("more", {})
    if values.pop("min_nodes", None) is not None:
        values["num_nodes"] = spec.nodes_as_written
    if spec.secrets:
        values["secrets"] = dict.fromkeys(spec.secrets)
    return {**values, **more}


def _commit(manifest: Mapping[str, Any], checkout: Checkout | None) -> dict[str, Any]:
    """The commit recorded at submission if the nodes had no repository."""
    if checkout is None or manifest.get("git_commit"):
        return {}
    return {"git_commit": checkout.commit, "git_dirty": checkout.is_dirty}


def _requested(spec: JobSpec, checkout: Checkout | None) -> dict[str, Any]:
    image = spec.resources.get("image_id")
    return {
        "name": spec.name,
        "run": spec.run,
        "num_nodes": spec.nodes_as_written,
        "resources": spec.resources,
        **_groups(spec),
        "image": image,
        "image_is_pinned": is_pinned(image),
        "folder": checkout.folder if checkout else None,
        "job_file": job_file(spec),
    }


def _groups(spec: JobSpec) -> dict[str, Any]:
    if not spec.holdfast.groups:
        return {}
    groups = {
        part.name: {"num_nodes": part.num_nodes, "resources": dict(part.resources)}
        for part in spec.parts
    }
    return {"groups": groups}


def _result(newest: CheckpointAttempt | None) -> dict[str, Any] | None:
    """The newest checkpoint as the result so far; None without one."""
    if newest is None:
        return None
    return {
        "step": newest.step,
        "checkpoint": newest.name,
        "weights_sha256": newest.weights_sha256,
        "metrics": {name: metric.value for name, metric in newest.metrics.items()},
    }


def _placement(ready: NodesReady | None) -> dict[str, Any]:
    return {
        "zone": ready.zone if ready else None,
        "instance_type": ready.instance_type if ready else None,
    }
