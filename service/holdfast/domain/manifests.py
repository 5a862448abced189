"""The manifests of a job: what its attempts came from, as their workers told it, and where they stood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.domain.events import Event, NodesReady, RunDescribed
from holdfast.domain.spec import JobSpec


def manifests(job_id: str, spec: JobSpec, facts: Iterable[Event]) -> dict[int, dict[str, Any]]:
    """The manifest of each attempt that told one, with what only the service knows under `holdfast`."""
    told, stood = dict[int, RunDescribed](), dict[int, NodesReady]()
    for fact in facts:
        if isinstance(fact, RunDescribed):
            told[fact.attempt] = fact
        elif isinstance(fact, NodesReady):
            stood[fact.attempt] = fact
    return {
        attempt: {**fact.manifest, "holdfast": _known(job_id, spec, fact, stood.get(attempt))}
        for attempt, fact in sorted(told.items())
    }


def lock_of(manifest: Mapping[str, Any]) -> str:
    """What was installed, as a file that pip reads; empty where nobody told."""
    lines = manifest.get("lock")
    return "".join(f"{line}\n" for line in lines) if isinstance(lines, Sequence) else ""


def _known(
    job_id: str, spec: JobSpec, told: RunDescribed, stood: NodesReady | None
) -> dict[str, Any]:
    return {
        "job": job_id,
        "name": spec.name,
        "attempt": told.attempt,
        "at": told.at.isoformat(),
        "run": spec.run,
        "num_nodes": spec.num_nodes,
        "resources": spec.resources,
        "image": spec.resources.get("image_id"),
        "zone": stood.zone if stood else None,
        "instance_type": stood.instance_type if stood else None,
    }
