"""Labels that clouds accept: tags of a job, put into the words that AWS, GCP and Kubernetes all understand.

`resources` of a managed job: what the file says, made whole where SkyPilot's own defaults would cost or lose.

What makes a task one that SkyPilot's managed jobs can run: name, mounts, setup, and what they refuse.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_worker.protocol.environment import Exit

from holdfast.domain.jobfile.accelerator_catalog import judge
from holdfast.domain.jobfile.deprecated import EAGER, FAILOVER
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.lint import notes_of_images, notes_of_spread
from holdfast.domain.jobfile.resource_options import (
    LISTS,
    PRICELESS,
    SELDOM_SPOT,
    SPOTLESS,
    ResourceOption,
    candidates,
    takes_spot,
    unknown_cloud,
)
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import BadJobFile, Flaw
from holdfast.rendering.base_task import WHEEL_MOUNT, WHEEL_PLACEHOLDER

NAME_LABEL: Final = "holdfast-name"
"""The label that tells the job's name, so that a bill of the cloud can be read."""
LONGEST: Final = 63
"""Characters of a key and of a value on GCP and Kubernetes."""

# What SkyPilot 0.14.1 holds labels against before it launches: `is_label_valid` of its clouds.
_RULES: Final = {
    "aws": (r"(?!aws:)\S{1,127}", r"\S{0,255}"),
    "gcp": (r"[a-z][a-z0-9_-]{0,62}", r"[a-z0-9_-]{0,63}"),
    "kubernetes": (
        r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?",
        r"([a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?)?",
    ),
}


def labels_of(name: str, tags: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The labels of a job, and a sentence for each tag that looks different as one."""
    labels, notes = {NAME_LABEL: _fit(name)}, list[str]()
    for key, value in tags.items():
        fitting = _fit(key).lstrip("0123456789-_")
        if not fitting:
            notes.append(f"holdfast.tags: {key!r} has no letter that a cloud accepts in a label")
            continue
        labels[fitting] = _fit(value)
        if (fitting, labels[fitting]) != (key, value):
            notes.append(
                f"holdfast.tags: clouds accept {key}={value} only as the label {fitting}={labels[fitting]}"
            )
    return labels, tuple(notes)


def problem(cloud: str | None, key: str, value: str) -> str | None:
    """Why a cloud refuses a label; None: it takes it, or its rule is not known."""
    if cloud not in _RULES:
        return None
    of_key, of_value = _RULES[cloud]
    if not re.fullmatch(of_key, key):
        return f"{key!r} is no name of a label on {cloud}; take lower-case letters, digits and -"
    if not re.fullmatch(of_value, value):
        return f"{value!r} is no value of a label on {cloud}; take lower-case letters, digits and -"
    return None


def _fit(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:LONGEST].strip("-_")


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


def _wrong_place(candidate: ResourceOption) -> Iterator[Flaw]:
    place = f"{candidate.pointer}/infra"
    if candidate.cloud == "local":
        yield Flaw(place, "local is no place among others; write infra: local under resources")
    elif candidate.cloud is not None and (sentence := unknown_cloud(candidate.cloud)) is not None:
        yield Flaw(place, sentence)
    if candidate.words.get("infra") and any(map(candidate.words.get, ("cloud", "region", "zone"))):
        sentence = "stands beside cloud, region or zone; write infra: cloud/region/zone alone"
        yield Flaw(place, sentence)


def _said(found: Sequence[ResourceOption], word: str) -> list[Any]:
    """The different values that candidates have for a word; those that say nothing left out."""
    values = list[Any]()
    for candidate in found:
        value = candidate.words.get(word)
        if value is not None and value not in values:
            values.append(value)
    return values


def _entry(
    spec: JobSpec, candidate: ResourceOption, labels: Mapping[str, str], takes_spot: bool
) -> dict[str, Any]:
    own = {
        word: value
        for word, value in candidate.own.items()
        if value is not None and word not in COMMON
    }
    whole = {**labels, **(candidate.words.get("labels") or {})}
    return own | _limited(spec, candidate) | {"use_spot": takes_spot, "labels": whole}


def _spot_notes(found: Sequence[ResourceOption]) -> Iterator[str]:
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


def _limited(spec: JobSpec, candidate: ResourceOption) -> dict[str, float]:
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


_REFUSED: Final = {
    "service": "is served by `sky serve`, not by a job; submit one that ends",
    "pool": "is made by `sky jobs pool apply`, not by a job; leave it out",
    "execution": "is about several tasks, and a job file holds one; leave it out",
    "experimental": "is not known to SkyPilot 0.14; write what stands below it under config",
}
_WORKER: Final = re.compile(r"holdfast[-_]worker")
_VARIABLE: Final = re.compile(r"\$\{?\b([A-Za-z_][A-Za-z0-9_]*)\b\}?")
_BREAKS_JSON: Final = re.compile(r'["\\\x00-\x1f]')


def managed(spec: JobSpec, house: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The words of a task that differ for a managed job, and what its user should know.

    Raises:
        BadJobFile: with everything that SkyPilot would refuse, or look for without end.
    """
    if flaws := (*_wrong_words(spec), *_wrong_substitutions(spec), *wrong_nodes(spec)):
        raise BadJobFile(flaws)
    resources, notes = nodes(spec, house["resources"])
    words = {
        "name": task_name(spec.name),
        "resources": resources,
        "file_mounts": {**spec.more.get("file_mounts", {}), WHEEL_MOUNT: WHEEL_PLACEHOLDER},
        "setup": _setup(spec),
    }
    said = (*notes_of_images(spec.resources), *notes_of_spread(spec.resources, spec.num_nodes))
    return words, (*notes, *said, *_folder_that_goes(spec))


def task_name(name: str) -> str:
    """The name as SkyPilot accepts one: ASCII letters and digits, with one or two of `._-` between them."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return re.sub(r"[._-]{3,}", "-", plain).strip("._-") or "job"


def _setup(spec: JobSpec) -> str:
    """The user's setup after the installation of the worker: bare where nothing says that it will be used."""
    scripts = f"{spec.setup or ''}\n{spec.run}"
    used = spec.holdfast.checkpoint is not None or _WORKER.search(scripts)
    install = f"bash {WHEEL_MOUNT}/install.sh {'worker' if used else 'bare'} || exit 1"
    return install if spec.setup is None else f"{install}\n{spec.setup}"


def _wrong_words(spec: JobSpec) -> Iterator[Flaw]:
    for word, problem in _REFUSED.items():
        if word in spec.more:
            yield Flaw(f"#/{word}", problem)
    if WHEEL_MOUNT in spec.more.get("file_mounts", {}):
        yield Flaw(f"#/file_mounts/{WHEEL_MOUNT}", "is where the worker lies; mount it elsewhere")


def _wrong_substitutions(spec: JobSpec) -> Iterator[Flaw]:
    """Values that SkyPilot would put into paths as they are, where they would become syntax of its own."""
    paths = json.dumps(
        [spec.workdir, *(spec.more.get(word) for word in ("workdir", "file_mounts", "volumes"))]
    )
    for name in dict.fromkeys(_VARIABLE.findall(paths)):
        if name in spec.secrets:
            problem = (
                "stands in a path of file_mounts, workdir or volumes, where SkyPilot would fill in the secret and show it; "
                "write the path out"
            )
            yield Flaw(f"#/secrets/{name}", problem)
        if _BREAKS_JSON.search(spec.envs.get(name, "")):
            problem = (
                "holds a quote, a backslash or a line break, and stands in a path of file_mounts, workdir "
                "or volumes; write the path out"
            )
            yield Flaw(f"#/envs/{name}", problem)


def _folder_that_goes(spec: JobSpec) -> Iterator[str]:
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is None or not checkpoint.store.startswith("file://"):
        return
    folder = checkpoint.store.removeprefix("file://")
    mounted = [*spec.more.get("file_mounts", {}), *spec.more.get("volumes", {})]
    if not any(folder == path or folder.startswith(f"{path}/") for path in mounted):
        yield (
            f"holdfast.checkpoint.store: {folder} is a folder of a node and goes with it, unless all nodes share it; "
            "write s3://bucket/prefix"
        )
