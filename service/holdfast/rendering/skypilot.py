"""Renders the tasks of SkyPilot's managed jobs, one for each node group.

Each has a name, labels, resources, mounts and setup.

Reports everything that SkyPilot would refuse. Fills in resources where SkyPilot's defaults would cost money or lose
work. Turns tags into labels that AWS, GCP and Kubernetes all accept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.protocol.object_stores import ACCOUNT_VARIABLES, AZURE

from holdfast.domain.jobfile.accelerator_catalog import check_accelerators
from holdfast.domain.jobfile.deprecated import EAGER_NEXT_REGION, FAILOVER
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.lint import image_notes, spread_notes
from holdfast.domain.jobfile.node_groups import located
from holdfast.domain.jobfile.resource_options import (
    CLOUDS_WITHOUT_PRICES,
    CLOUDS_WITHOUT_SPOT,
    LISTS,
    SHARED_KEYS,
    SPOT_OPT_IN_CLOUDS,
    ResourceOption,
    resource_options,
    unknown_cloud,
    uses_spot,
)
from holdfast.domain.jobfile.spec import Engine, JobPart, JobSpec
from holdfast.errors import BadJobFile, ValidationIssue
from holdfast.rendering.base_task import WHEEL_MOUNT, WHEEL_PLACEHOLDER, bundled_accelerators

NAME_LABEL: Final = "holdfast-name"
"""Label with the job's name, which identifies the job on the cloud's bill."""
MAX_LABEL_CHARS: Final = 63
"""Maximum length of a key and of a value on GCP and Kubernetes."""

# Rules that SkyPilot 0.14.1 checks labels against before a launch: `is_label_valid` of its clouds.
_RULES: Final = {
    "aws": (r"(?!aws:)\S{1,127}", r"\S{0,255}"),
    "gcp": (r"[a-z][a-z0-9_-]{0,62}", r"[a-z0-9_-]{0,63}"),
    "kubernetes": (
        r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?",
        r"([a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?)?",
    ),
}


_ZONE_ID: Final = re.compile(r"[a-z]+\d+(-[a-z]+\d+)?-az\d+")
"""An id of an AWS zone, which is the same in all accounts, unlike its name."""


def labels_of(name: str, tags: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return a job's labels, and a note for each tag whose label differs from it."""
    labels, notes = {NAME_LABEL: _label_text(name)}, list[str]()
    for key, value in tags.items():
        fitting = _label_text(key).lstrip("0123456789-_")
        if not fitting:
            notes.append(f"holdfast.tags: {key!r} contains no letter that clouds accept in a label")
            continue
        labels[fitting] = _label_text(value)
        if (fitting, labels[fitting]) != (key, value):
            notes.append(
                f"holdfast.tags: {key}={value} is changed to the label {fitting}={labels[fitting]}, which clouds accept"
            )
    return labels, tuple(notes)


def label_problem(cloud: str | None, key: str, value: str) -> str | None:
    """Return why a cloud rejects a label; None if it is accepted or the cloud's rule is unknown."""
    if cloud not in _RULES:
        return None
    of_key, of_value = _RULES[cloud]
    if not re.fullmatch(of_key, key):
        return f"{key!r} is not a valid label key on {cloud}; use lower-case letters, digits and -"
    if not re.fullmatch(of_value, value):
        return (
            f"{value!r} is not a valid label value on {cloud}; use lower-case letters, digits and -"
        )
    return None


def _label_text(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:MAX_LABEL_CHARS].strip("-_")


def managed_resources(
    spec: JobSpec, base: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the resources of a job without `resource_flaws`, and notes for its user."""
    found = resource_options(spec.resources)
    common = {
        word: _distinct_values(found, word)[0]
        for word in SHARED_KEYS
        if _distinct_values(found, word)
    }
    spot = [uses_spot(candidate) for candidate in found]
    labels, label_notes = labels_of(spec.name, spec.holdfast.tags)
    recovery, recovery_notes = _recovery(spec, common.get("job_recovery"), spot)
    own = {
        word: value
        for word, value in spec.resources.items()
        if value is not None and word not in (*LISTS, *SHARED_KEYS)
    }
    fresh = {
        "use_spot": base["use_spot"],
        **own,
        **common,
        "job_recovery": recovery,
        "autostop": common.get("autostop", base["autostop"]),
    }
    for word in LISTS:
        if spec.resources.get(word):
            # Labels are written into each entry: SkyPilot 0.14.1 leaks the labels of one entry into the next.
            fresh.pop("labels", None)
            fresh[word] = [
                _entry(spec, candidate, labels, takes)
                for candidate, takes in zip(found, spot, strict=True)
            ]
            break
    else:
        fresh |= _max_hourly_cost(spec, found[0]) | {
            "labels": {**labels, **(fresh.get("labels") or {})}
        }
        fresh["use_spot"] = spot[0]
    notes = (
        *_spot_notes(found),
        *_cost_notes(spec, found),
        *recovery_notes,
        *_autostop_notes(common),
        *label_notes,
    )
    return fresh, (*check_accelerators(found, bundled_accelerators())[1], *notes)


def resource_flaws(spec: JobSpec) -> Iterator[ValidationIssue]:
    """Yield settings that SkyPilot would refuse or never find a match for."""
    resources = spec.resources
    if resources.get("any_of") and resources.get("ordered"):
        yield ValidationIssue(
            "#/resources/ordered", "cannot be combined with any_of; write one of the two"
        )
        return
    found = resource_options(resources)
    for candidate in found:
        yield from _infra_flaws(candidate)
        for key, value in (candidate.options.get("labels") or {}).items():
            if (sentence := label_problem(candidate.cloud, key, value)) is not None:
                yield ValidationIssue(f"{candidate.pointer}/labels/{key}", sentence)
    for word in SHARED_KEYS:
        if len(_distinct_values(found, word)) > 1:
            yield ValidationIssue(
                f"#/resources/{word}",
                "differs between candidates; write the same value for all of them",
            )
    yield from check_accelerators(found, bundled_accelerators())[0]


def _infra_flaws(candidate: ResourceOption) -> Iterator[ValidationIssue]:
    place = f"{candidate.pointer}/infra"
    if candidate.cloud == "local":
        yield ValidationIssue(
            place,
            "local cannot be one of several candidates; write infra: local directly under resources",
        )
    elif candidate.cloud is not None and (sentence := unknown_cloud(candidate.cloud)) is not None:
        yield ValidationIssue(place, sentence)
    words = [candidate.options.get(word) for word in ("infra", "zone")]
    for part in (part.strip() for word in words for part in str(word or "").split("/")):
        if _ZONE_ID.fullmatch(part):
            sentence = (
                f"{part} is the id of a zone, which SkyPilot does not know; write the zone's name, such as us-east-1a: "
                "`aws ec2 describe-availability-zones` lists both"
            )
            yield ValidationIssue(place, sentence)
    if candidate.options.get("infra") and any(
        map(candidate.options.get, ("cloud", "region", "zone"))
    ):
        sentence = (
            "cannot be combined with cloud, region or zone; write only infra: cloud/region/zone"
        )
        yield ValidationIssue(place, sentence)


def _distinct_values(found: Sequence[ResourceOption], word: str) -> list[Any]:
    """Return the distinct values of a key; candidates without the key are skipped."""
    values = list[Any]()
    for candidate in found:
        value = candidate.options.get(word)
        if value is not None and value not in values:
            values.append(value)
    return values


def _entry(
    spec: JobSpec, candidate: ResourceOption, labels: Mapping[str, str], takes_spot: bool
) -> dict[str, Any]:
    own = {
        word: value
        for word, value in candidate.own_options.items()
        if value is not None and word not in SHARED_KEYS
    }
    whole = {**labels, **(candidate.options.get("labels") or {})}
    return own | _max_hourly_cost(spec, candidate) | {"use_spot": takes_spot, "labels": whole}


def _spot_notes(found: Sequence[ResourceOption]) -> Iterator[str]:
    for candidate in found:
        if candidate.options.get("use_spot") is not True:
            continue
        place = candidate.pointer[2:]
        if candidate.cloud in CLOUDS_WITHOUT_SPOT:
            yield f"{place}: {candidate.cloud} has no spot nodes; use_spot is set to false"
        elif candidate.cloud in SPOT_OPT_IN_CLOUDS:
            yield (
                f"{place}: {candidate.cloud} has spot nodes only if SkyPilot supports the cluster's autoscaler; "
                "otherwise the job waits for nodes until holdfast.limits.max_wait"
            )


def _recovery(
    spec: JobSpec, configured: Any, spot: Sequence[bool]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the whole of `job_recovery`, and notes for the user.

    The default for spot is EAGER_NEXT_REGION: after a termination notice, FAILOVER would restart the worker on the node
    that is about to be reclaimed. The default on demand is FAILOVER, which keeps the node when the program restarts.
    """
    words = configured if isinstance(configured, dict) else {"strategy": configured}
    named = str(words["strategy"]).upper() if words.get("strategy") else None
    codes = words.get("recover_on_exit_codes") or []
    codes = codes if isinstance(codes, list) else [codes]
    recovery = {
        "strategy": named or (EAGER_NEXT_REGION if any(spot) else FAILOVER),
        "max_restarts_on_errors": spec.holdfast.limits.max_failures - 1,
        "recover_on_exit_codes": sorted({int(Exit.PREEMPTED), *codes}),
    }
    notes = list[str]()
    if named == EAGER_NEXT_REGION:
        notes.append(
            "resources.job_recovery: EAGER_NEXT_REGION in SkyPilot 0.14.1 does not avoid the region that "
            "preempted the nodes, despite its name; it tries all regions again, cheapest first"
        )
    if own := sorted(set(codes) - {Exit.PREEMPTED}):
        notes.append(
            f"resources.job_recovery: SkyPilot restarts the job without a limit after exit code {', '.join(map(str, own))}; "
            "Holdfast limits the restarts through holdfast.limits"
        )
    return recovery, tuple(notes)


def _max_hourly_cost(spec: JobSpec, candidate: ResourceOption) -> dict[str, float]:
    """Return the maximum price of one node within the limit; empty without a limit or a price.

    SkyPilot compares this price with its catalog when it chooses a node. The actual cost is checked while nodes run.
    """
    configured = candidate.options.get("max_hourly_cost")
    limit = spec.holdfast.limits.max_hourly_cost_micros
    bounds = [] if configured is None else [float(configured)]
    if limit is not None and candidate.cloud not in CLOUDS_WITHOUT_PRICES:
        bounds.append(max(1, limit // spec.num_nodes) / MICROS_PER_USD)
    lowest = min(bounds, default=math.inf)
    return {} if math.isinf(lowest) else {"max_hourly_cost": lowest}


def _cost_notes(spec: JobSpec, found: Sequence[ResourceOption]) -> Iterator[str]:
    for candidate in found:
        has_gpus = candidate.options.get("accelerators")
        if candidate.cloud == "gcp" and has_gpus and _max_hourly_cost(spec, candidate):
            yield (
                f"{candidate.pointer[2:]}: SkyPilot 0.14.1 ignores max_hourly_cost for nodes with GPUs on gcp; "
                "holdfast.limits.max_hourly_cost_usd pauses a job that costs more once its nodes run"
            )


def _autostop_notes(common: Mapping[str, Any]) -> Iterator[str]:
    match common.get("autostop"):
        case None | True:
            return
        case False:
            yield (
                "resources.autostop: with false, nodes stay up and cost money if SkyPilot's controller dies; "
                "omit it to get 10 minutes"
            )
        case _:
            yield (
                "resources.autostop: SkyPilot's managed jobs terminate idle nodes after 10 minutes and ignore this "
                "value; nodes that run a job are not idle"
            )


_UNSUPPORTED: Final = {
    "service": "is a `sky serve` feature; submit a job that ends",
    "pool": "is created by `sky jobs pool apply`, not by a job; remove it",
    "execution": "applies to several tasks, but a job file holds one; remove it",
    "experimental": "is unknown to SkyPilot 0.14; move its contents under config",
}
_WORKER: Final = re.compile(r"holdfast[-_]worker")
_VARIABLE: Final = re.compile(r"\$\{?\b([A-Za-z_][A-Za-z0-9_]*)\b\}?")
_BREAKS_JSON: Final = re.compile(r'["\\\x00-\x1f]')


def managed_tasks(
    spec: JobSpec, base: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return what each managed job has instead of the task of all nodes, and notes.

    A job without node groups is one managed job.

    Raises:
        BadJobFile: SkyPilot would refuse a job or search forever; lists all reasons.
    """
    flaws = [*_unsupported_keys(spec), *_substitution_flaws(spec)]
    for part in spec.parts:
        flaws += _part_flaws(spec, part)
    if flaws:
        raise BadJobFile(tuple(dict.fromkeys(flaws)))
    tasks, notes = list[dict[str, Any]](), list[str]()
    for part in spec.parts:
        task, configured = _part_task(spec, part, base)
        tasks.append(task)
        notes += [f"group {part.name}: {note}" if part.name else note for note in configured]
    return tasks, (*notes, *_store_notes(spec), *_name_notes(spec))


def _part_flaws(spec: JobSpec, part: JobPart) -> Iterator[ValidationIssue]:
    own = next((g.own_options for g in spec.holdfast.groups if g.name == part.name), {})
    for issue in resource_flaws(spec.of_part(part)):
        yield located(part, issue, frozenset(own)) if part.name else issue


def _part_task(
    spec: JobSpec, part: JobPart, base: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what differs in the managed job of a part, and notes about its resources."""
    resources, notes = managed_resources(spec.of_part(part), base["resources"])
    task: dict[str, Any] = {
        "name": task_name(f"{spec.name}-{part.name}" if part.name else spec.name),
        "num_nodes": part.num_nodes,
        "resources": resources,
        "file_mounts": {**spec.more.get("file_mounts", {}), WHEEL_MOUNT: WHEEL_PLACEHOLDER},
        "setup": _setup(spec),
    }
    configured = (*image_notes(part.resources), *spread_notes(part.resources, part.num_nodes))
    return task, (*notes, *configured)


def group_envs(spec: JobSpec, part: JobPart) -> dict[str, str]:
    """Return the variables of a node group's nodes; empty without groups."""
    if not part.name:
        return {}
    return {
        Env.GROUP.value: part.name,
        Env.FIRST_NODE.value: str(part.first_node),
        Env.TOTAL_NODES.value: str(spec.num_nodes),
    }


def _name_notes(spec: JobSpec) -> Iterator[str]:
    name = task_name(spec.name)
    if spec.engine is not Engine.LOCAL and name != spec.name:
        yield f"the launcher shows the job as {name}, as it accepts only ASCII letters, digits and . _ - in names"


def task_name(name: str) -> str:
    """Return the name as SkyPilot accepts it.

    ASCII letters and digits, joined by one or two of `._-`.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return re.sub(r"[._-]{3,}", "-", plain).strip("._-") or "job"


def _setup(spec: JobSpec) -> str:
    """Return the setup script: worker installation, then the user's setup.

    The installation is bare if the job seems not to use the worker.
    """
    scripts = f"{spec.setup or ''}\n{spec.run}"
    used = spec.holdfast.checkpoint is not None or _WORKER.search(scripts)
    install = f"bash {WHEEL_MOUNT}/install.sh {'worker' if used else 'bare'} || exit 1"
    return install if spec.setup is None else f"{install}\n{spec.setup}"


def _unsupported_keys(spec: JobSpec) -> Iterator[ValidationIssue]:
    for word, problem in _UNSUPPORTED.items():
        if word in spec.more:
            yield ValidationIssue(f"#/{word}", problem)
    if WHEEL_MOUNT in spec.more.get("file_mounts", {}):
        yield ValidationIssue(
            f"#/file_mounts/{WHEEL_MOUNT}", "is reserved for the worker; choose another path"
        )


def _substitution_flaws(spec: JobSpec) -> Iterator[ValidationIssue]:
    """Yield values that SkyPilot would insert into paths verbatim, as part of its syntax."""
    paths = json.dumps(
        [spec.workdir, *(spec.more.get(word) for word in ("workdir", "file_mounts", "volumes"))]
    )
    for name in dict.fromkeys(_VARIABLE.findall(paths)):
        if name in spec.secrets:
            problem = (
                "is used in a path of file_mounts, workdir or volumes, where SkyPilot would insert and print the secret; "
                "write the path in full"
            )
            yield ValidationIssue(f"#/secrets/{name}", problem)
        if _BREAKS_JSON.search(spec.envs.get(name, "")):
            problem = (
                "contains a quote, a backslash or a line break, and is used in a path of file_mounts, workdir "
                "or volumes; write the path in full"
            )
            yield ValidationIssue(f"#/envs/{name}", problem)


def _store_notes(spec: JobSpec) -> Iterator[str]:
    checkpoint = spec.holdfast.checkpoint
    is_azure = checkpoint is not None and checkpoint.store.startswith(f"{AZURE}://")
    if is_azure and not ACCOUNT_VARIABLES & {*spec.envs, *spec.secrets}:
        yield (
            "holdfast.checkpoint.store: the nodes do not know the storage account; "
            "set AZURE_STORAGE_ACCOUNT_NAME in envs, unless their image does"
        )
    if checkpoint is None or not checkpoint.store.startswith("file://"):
        return
    folder = checkpoint.store.removeprefix("file://")
    mounted = [*spec.more.get("file_mounts", {}), *spec.more.get("volumes", {})]
    if not any(folder == path or folder.startswith(f"{path}/") for path in mounted):
        yield (
            f"holdfast.checkpoint.store: {folder} is a directory on a node and is lost with it unless all nodes share it; "
            "use s3://bucket/prefix"
        )
