"""`resources` of a managed job: what the file says, made whole where SkyPilot's own defaults would cost or lose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_worker.wire import Exit

from holdfast.domain.candidates import (
    LISTS,
    PRICELESS,
    SELDOM_SPOT,
    SPOTLESS,
    Candidate,
    candidates,
    takes_spot,
    unknown_cloud,
)
from holdfast.domain.limits import MICROS_PER_USD
from holdfast.domain.offers import judge
from holdfast.domain.spec import JobSpec
from holdfast.domain.stale import EAGER, FAILOVER
from holdfast.errors import Flaw
from holdfast.rendering.labels import labels_of, problem

COMMON: Final = ("job_recovery", "autostop", "priority", "priority_class")
"""Words that SkyPilot wants to be the same for all candidates."""


def nodes(spec: JobSpec, house: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The resources of a job that `wrong_nodes` finds nothing wrong with, and what its user should know."""
    found = candidates(spec.resources)
    common = {word: _said(found, word)[0] for word in COMMON if _said(found, word)}
    spot = [takes_spot(candidate) for candidate in found]
    labels, label_notes = labels_of(spec.name, spec.holdfast.tags)
    recovery, recovery_notes = _recovery(spec, common.get("job_recovery"), spot)
    own = {
        word: value
        for word, value in spec.resources.items()
        if value is not None and word not in (*LISTS, *COMMON)
    }
    fresh = {
        "use_spot": house["use_spot"],
        **own,
        **common,
        "job_recovery": recovery,
        "autostop": common.get("autostop", house["autostop"]),
    }
    for word in LISTS:
        if spec.resources.get(word):
            # Labels are written into each entry: SkyPilot 0.14.1 lets those of one entry leak into the next.
            fresh.pop("labels", None)
            fresh[word] = [
                _entry(spec, candidate, labels, takes)
                for candidate, takes in zip(found, spot, strict=True)
            ]
            break
    else:
        fresh |= _limited(spec, found[0]) | {"labels": {**labels, **(fresh.get("labels") or {})}}
        fresh["use_spot"] = spot[0]
    notes = (*_spot_notes(found), *recovery_notes, *_brake_notes(common), *label_notes)
    return fresh, (*judge(found)[1], *notes)


def wrong_nodes(spec: JobSpec) -> Iterator[Flaw]:
    """What SkyPilot would refuse, or look for without end."""
    resources = spec.resources
    if resources.get("any_of") and resources.get("ordered"):
        yield Flaw("#/resources/ordered", "stands beside any_of; write one of the two")
        return
    found = candidates(resources)
    for candidate in found:
        yield from _wrong_place(candidate)
        for key, value in (candidate.words.get("labels") or {}).items():
            if (sentence := problem(candidate.cloud, key, value)) is not None:
                yield Flaw(f"{candidate.pointer}/labels/{key}", sentence)
    for word in COMMON:
        if len(_said(found, word)) > 1:
            yield Flaw(f"#/resources/{word}", "differs between candidates; write it once for all")
    yield from judge(found)[0]


def _wrong_place(candidate: Candidate) -> Iterator[Flaw]:
    place = f"{candidate.pointer}/infra"
    if candidate.cloud == "local":
        yield Flaw(place, "local is no place among others; write infra: local under resources")
    elif candidate.cloud is not None and (sentence := unknown_cloud(candidate.cloud)) is not None:
        yield Flaw(place, sentence)
    if candidate.words.get("infra") and any(map(candidate.words.get, ("cloud", "region", "zone"))):
        sentence = "stands beside cloud, region or zone; write infra: cloud/region/zone alone"
        yield Flaw(place, sentence)


def _said(found: Sequence[Candidate], word: str) -> list[Any]:
    """The different values that candidates have for a word; those that say nothing left out."""
    values = list[Any]()
    for candidate in found:
        value = candidate.words.get(word)
        if value is not None and value not in values:
            values.append(value)
    return values


def _entry(
    spec: JobSpec, candidate: Candidate, labels: Mapping[str, str], takes_spot: bool
) -> dict[str, Any]:
    own = {
        word: value
        for word, value in candidate.own.items()
        if value is not None and word not in COMMON
    }
    whole = {**labels, **(candidate.words.get("labels") or {})}
    return own | _limited(spec, candidate) | {"use_spot": takes_spot, "labels": whole}


def _spot_notes(found: Sequence[Candidate]) -> Iterator[str]:
    for candidate in found:
        if candidate.words.get("use_spot") is not True:
            continue
        place = candidate.pointer[2:]
        if candidate.cloud in SPOTLESS:
            yield f"{place}: there are no spot nodes on {candidate.cloud}; use_spot is set to false"
        elif candidate.cloud in SELDOM_SPOT:
            yield (
                f"{place}: {candidate.cloud} has spot nodes only where SkyPilot knows its autoscaler; "
                "without it the job waits for nodes until holdfast.limits.max_wait"
            )


def _recovery(
    spec: JobSpec, said: Any, spot: Sequence[bool]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The whole of `job_recovery`, and what its user should know.

    Without a word: where nodes can be taken, EAGER_NEXT_REGION, as FAILOVER would answer a worker that left on notice
    by starting it again on the machine that is about to go; on demand, FAILOVER, as it keeps the machine when the
    program is started again.
    """
    words = said if isinstance(said, dict) else {"strategy": said}
    named = str(words["strategy"]).upper() if words.get("strategy") else None
    codes = words.get("recover_on_exit_codes") or []
    codes = codes if isinstance(codes, list) else [codes]
    recovery = {
        "strategy": named or (EAGER if any(spot) else FAILOVER),
        "max_restarts_on_errors": spec.holdfast.limits.max_failures - 1,
        "recover_on_exit_codes": sorted({int(Exit.PREEMPTED), *codes}),
    }
    notes = list[str]()
    if named == EAGER:
        notes.append(
            "resources.job_recovery: EAGER_NEXT_REGION of SkyPilot 0.14.1 does not avoid the region that took the "
            "nodes, whatever its name says; it asks everywhere again, the cheapest place first"
        )
    if own := sorted(set(codes) - {Exit.PREEMPTED}):
        notes.append(
            f"resources.job_recovery: SkyPilot restarts without end after exit code {', '.join(map(str, own))}; "
            "Holdfast bounds it by holdfast.limits"
        )
    return recovery, tuple(notes)


def _limited(spec: JobSpec, candidate: Candidate) -> dict[str, float]:
    """The price of one node that keeps all nodes within the limit; nothing where there is no limit or no price.

    SkyPilot compares it with its catalog as it chooses a node. What nodes really cost is watched as they stand.
    """
    said = candidate.words.get("max_hourly_cost")
    limit = spec.holdfast.limits.max_hourly_cost_micros
    bounds = [] if said is None else [float(said)]
    if limit is not None and candidate.cloud not in PRICELESS:
        bounds.append(max(1, limit // spec.num_nodes) / MICROS_PER_USD)
    lowest = min(bounds, default=math.inf)
    return {} if math.isinf(lowest) else {"max_hourly_cost": lowest}


def _brake_notes(common: Mapping[str, Any]) -> Iterator[str]:
    match common.get("autostop"):
        case None | True:
            return
        case False:
            yield (
                "resources.autostop: false leaves nodes standing, at their price, should SkyPilot's controller die; "
                "leave it out for 10 minutes"
            )
        case _:
            yield (
                "resources.autostop: SkyPilot's managed jobs take idle nodes down after 10 minutes, whatever the file "
                "says; nodes that work are not idle"
            )
