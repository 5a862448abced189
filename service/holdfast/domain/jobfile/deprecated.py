"""Migration of deprecated keys, with a note for each change.

SkyPilot 0.14 refuses `spot_recovery`, never sets `SKYPILOT_HEAD_IP`, and has no recovery strategy `auto`; tutorials still use all
three. Its key `config` replaces `experimental.config_overrides`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from holdfast.domain.jobfile.resource_options import LISTS

EAGER_NEXT_REGION: Final = "EAGER_NEXT_REGION"
FAILOVER: Final = "FAILOVER"
STRATEGIES: Final = (EAGER_NEXT_REGION, FAILOVER)
MAX_RESTARTS: Final = 99
_HEAD_IP: Final = re.compile(r"\$\{?SKYPILOT_HEAD_IP\b")
_HEAD_IP_LINE: Final = 'export SKYPILOT_HEAD_IP="$(head -n1 <<< "$SKYPILOT_NODE_IPS")"\n'


def migrate_deprecated(raw: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The task with current keys, and a note for each change; `raw` is not modified."""
    notes: list[str] = []
    task = dict(raw)
    if isinstance(task.get("resources"), dict):
        task["resources"] = _resources(task["resources"], notes)
        _restarts(task, notes)
    if isinstance(block := task.get("holdfast"), dict) and isinstance(block.get("groups"), list):
        groups = [_group(group, n, notes) for n, group in enumerate(block["groups"])]
        task["holdfast"] = {**block, "groups": groups}
    if isinstance(old := task.get("experimental"), dict) and old.keys() == {"config_overrides"}:
        del task["experimental"]
        task.setdefault("config", old["config_overrides"])
        notes.append("experimental.config_overrides is now config; config is set to it")
    for part in ("setup", "run"):
        text = task.get(part)
        if isinstance(text, str) and _HEAD_IP.search(text):
            task[part] = _HEAD_IP_LINE + text
            notes.append(
                f"{part}: SKYPILOT_HEAD_IP does not exist; it is set to the first line of SKYPILOT_NODE_IPS"
            )
        if isinstance(text, str) and "PYTORCH_DIST_BACKEND=glow" in text:
            task[part] = str(task[part]).replace(
                "PYTORCH_DIST_BACKEND=glow", "PYTORCH_DIST_BACKEND=gloo"
            )
            notes.append(f"{part}: the backend is called gloo, not glow")
    return task, tuple(notes)


def _group(group: Any, number: int, notes: list[str]) -> Any:
    if not isinstance(group, dict) or not isinstance(group.get("resources"), dict):
        return group
    place = f"holdfast.groups[{number}].resources"
    return {**group, "resources": _resources(group["resources"], notes, place)}


def _resources(
    resources: dict[str, Any], notes: list[str], place: str = "resources"
) -> dict[str, Any]:
    fresh = _node(resources, place, notes)
    for word in LISTS:
        if isinstance(entries := fresh.get(word), list):
            fresh[word] = [
                _node(entry, f"{place}.{word}[{n}]", notes) if isinstance(entry, dict) else entry
                for n, entry in enumerate(entries)
            ]
    return fresh


def _node(words: dict[str, Any], place: str, notes: list[str]) -> dict[str, Any]:
    """Migrate the options of one node type."""
    fresh = dict(words)
    if "spot_recovery" in fresh:
        strategy = _strategy(fresh.pop("spot_recovery"))
        fresh.setdefault("job_recovery", strategy)
        notes.append(
            f"{place}: spot_recovery is now job_recovery; it is set to {fresh['job_recovery']}"
        )
    _recovery(fresh, place, notes)
    if "infra" not in fresh and (where := _infra(fresh)):
        fresh["infra"] = where
        notes.append(f"{place}: cloud, region and zone are now infra; infra is set to {where}")
    return fresh


def _recovery(fresh: dict[str, Any], place: str, notes: list[str]) -> None:
    """Replace an unknown recovery strategy."""
    recovery = fresh.get("job_recovery")
    named = recovery.get("strategy") if isinstance(recovery, dict) else recovery
    if not isinstance(named, str) or named.upper() in STRATEGIES:
        return
    notes.append(
        f"{place}: job_recovery {named!r} is not a strategy; it is set to {EAGER_NEXT_REGION}"
    )
    fresh["job_recovery"] = (
        {**recovery, "strategy": EAGER_NEXT_REGION}
        if isinstance(recovery, dict)
        else EAGER_NEXT_REGION
    )


def _infra(fresh: dict[str, Any]) -> str | None:
    """Remove the old keys and return `cloud/region/zone`; None without them."""
    parts = {word: fresh[word] for word in ("cloud", "region", "zone") if fresh.get(word)}
    if not parts or not all(isinstance(part, str) for part in parts.values()):
        return None
    for word in ("cloud", "region", "zone"):
        fresh.pop(word, None)
    where = [parts.get("cloud", "*"), parts.get("region", "*"), parts.get("zone", "*")]
    while where[-1] == "*":
        where.pop()
    return "/".join(where)


def _restarts(task: dict[str, Any], notes: list[str]) -> None:
    """Migrate SkyPilot's restart limit to `max_failures`, unless that is set."""
    recovery = task["resources"].get("job_recovery")
    restarts = recovery.get("max_restarts_on_errors") if isinstance(recovery, dict) else None
    block = task.get("holdfast") or {}
    limits = (block.get("limits") or {}) if isinstance(block, dict) else None
    if type(restarts) is not int or not 0 <= restarts <= MAX_RESTARTS or type(limits) is not dict:
        return
    if "max_failures" in limits:
        notes.append(
            "resources: job_recovery.max_restarts_on_errors has no effect; holdfast.limits.max_failures applies"
        )
    else:
        task["holdfast"] = {**block, "limits": {**limits, "max_failures": restarts + 1}}
        notes.append(
            f"resources: job_recovery.max_restarts_on_errors: {restarts} is read as "
            f"holdfast.limits.max_failures: {restarts + 1}"
        )


def _strategy(word: object) -> str:
    return (
        word.upper() if isinstance(word, str) and word.upper() in STRATEGIES else EAGER_NEXT_REGION
    )
