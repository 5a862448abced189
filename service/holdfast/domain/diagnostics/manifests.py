"""The manifests of a job: what its attempts came from, as their workers told it, and where they stood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.events import Event, NodesReady, RunDescribed, Submitted
from holdfast.domain.events.values import Checkout
from holdfast.domain.jobfile.lint import is_pinned
from holdfast.domain.jobfile.spec import JobSpec


def manifests(job_id: str, spec: JobSpec, facts: Iterable[Event]) -> dict[int, dict[str, Any]]:
    """The manifest of each attempt that told one, with what only the service knows under `holdfast`."""
    told, stood = dict[int, RunDescribed](), dict[int, NodesReady]()
    checkout: Checkout | None = None
    saves = CheckpointHistory()
    for seq, fact in enumerate(facts, 1):
        saves.tell(seq, fact)
        if isinstance(fact, Submitted):
            checkout = fact.checkout
        elif isinstance(fact, RunDescribed):
            told[fact.attempt] = fact
        elif isinstance(fact, NodesReady):
            stood[fact.attempt] = fact
    return {
        attempt: {
            **fact.manifest,
            **_commit(fact.manifest, checkout),
            "holdfast": {
                "job": job_id,
                "attempt": attempt,
                "at": fact.at.isoformat(),
                **_asked(spec, checkout),
                **_placed(stood.get(attempt)),
                "result": _result(saves.newest()),
            },
        }
        for attempt, fact in sorted(told.items())
    }


def lock_of(manifest: Mapping[str, Any]) -> str:
    """What was installed, as a file that pip reads; empty where nobody told."""
    lines = manifest.get("lock")
    return "".join(f"{line}\n" for line in lines) if isinstance(lines, Sequence) else ""


def job_file(spec: JobSpec) -> dict[str, Any]:
    """The job file as it was understood, so that it can be submitted again: names of secrets have no values."""
    words = spec.model_dump(mode="json", exclude_defaults=True)
    more = words.pop("more", {})
    if spec.secrets:
        words["secrets"] = dict.fromkeys(spec.secrets)
    return {**words, **more}


def _commit(told: Mapping[str, Any], checkout: Checkout | None) -> dict[str, Any]:
    """The commit as whoever submitted the job saw it, where the nodes had no repository."""
    if checkout is None or told.get("git_commit"):
        return {}
    return {"git_commit": checkout.commit, "git_dirty": checkout.is_dirty}


def _asked(spec: JobSpec, checkout: Checkout | None) -> dict[str, Any]:
    image = spec.resources.get("image_id")
    return {
        "name": spec.name,
        "run": spec.run,
        "num_nodes": spec.num_nodes,
        "resources": spec.resources,
        "image": image,
        "image_is_pinned": is_pinned(image),
        "folder": checkout.folder if checkout else None,
        "job_file": job_file(spec),
    }


def _result(newest: CheckpointAttempt | None) -> dict[str, Any] | None:
    """What the job came to so far: its newest checkpoint; None while there is none."""
    if newest is None:
        return None
    return {
        "step": newest.step,
        "checkpoint": newest.name,
        "weights_sha256": newest.weights_sha256,
        "metrics": {name: metric.value for name, metric in newest.metrics.items()},
    }


def _placed(stood: NodesReady | None) -> dict[str, Any]:
    return {
        "zone": stood.zone if stood else None,
        "instance_type": stood.instance_type if stood else None,
    }
