"""Stale words of older texts, put right and reported.

SkyPilot 0.14 refuses `spot_recovery`, never sets `SKYPILOT_HEAD_IP`, and knows no recovery strategy called `auto`;
tutorials still use all three. What it calls `config` now was `experimental.config_overrides`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from holdfast.domain.jobfile.resource_options import LISTS

EAGER: Final = "EAGER_NEXT_REGION"
FAILOVER: Final = "FAILOVER"
STRATEGIES: Final = (EAGER, FAILOVER)
MOST_RESTARTS: Final = 99
_HEAD_IP: Final = re.compile(r"\$\{?SKYPILOT_HEAD_IP\b")
_HEAD_IP_LINE: Final = 'export SKYPILOT_HEAD_IP="$(head -n1 <<< "$SKYPILOT_NODE_IPS")"\n'


def migrate_deprecated(raw: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The task in present words, and a sentence for each word that was changed. `raw` itself is left alone."""
    notes: list[str] = []
    task = dict(raw)
    if isinstance(task.get("resources"), dict):
        task["resources"] = _resources(task["resources"], notes)
        _restarts(task, notes)
    if isinstance(old := task.get("experimental"), dict) and old.keys() == {"config_overrides"}:
        del task["experimental"]
        task.setdefault("config", old["config_overrides"])
        notes.append("experimental.config_overrides is now one word; config is set to it")
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


def _resources(resources: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    fresh = _node(resources, "resources", notes)
    for word in LISTS:
        if isinstance(entries := fresh.get(word), list):
            fresh[word] = [
                _node(entry, f"resources.{word}[{n}]", notes) if isinstance(entry, dict) else entry
                for n, entry in enumerate(entries)
            ]
    return fresh


def _node(words: dict[str, Any], place: str, notes: list[str]) -> dict[str, Any]:
    """The words of one kind of node."""
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
        notes.append(f"{place}: cloud, region and zone are now one word; infra is set to {where}")
    return fresh


def _recovery(fresh: dict[str, Any], place: str, notes: list[str]) -> None:
    """A strategy that does not exist becomes one that does."""
    recovery = fresh.get("job_recovery")
    named = recovery.get("strategy") if isinstance(recovery, dict) else recovery
    if not isinstance(named, str) or named.upper() in STRATEGIES:
        return
    notes.append(f"{place}: job_recovery {named!r} is no strategy; it is set to {EAGER}")
    fresh["job_recovery"] = {**recovery, "strategy": EAGER} if isinstance(recovery, dict) else EAGER


def _infra(fresh: dict[str, Any]) -> str | None:
    """`cloud/region/zone` of the three old words, which are taken out; None: there are none."""
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
    """SkyPilot's own word for how often a program may fail becomes ours, unless ours is there."""
    recovery = task["resources"].get("job_recovery")
    restarts = recovery.get("max_restarts_on_errors") if isinstance(recovery, dict) else None
    block = task.get("holdfast") or {}
    limits = (block.get("limits") or {}) if isinstance(block, dict) else None
    if type(restarts) is not int or not 0 <= restarts <= MOST_RESTARTS or type(limits) is not dict:
        return
    if "max_failures" in limits:
        notes.append(
            "resources: job_recovery.max_restarts_on_errors has no effect; holdfast.limits.max_failures says it"
        )
    else:
        task["holdfast"] = {**block, "limits": {**limits, "max_failures": restarts + 1}}
        notes.append(
            f"resources: job_recovery.max_restarts_on_errors: {restarts} is read as "
            f"holdfast.limits.max_failures: {restarts + 1}"
        )


def _strategy(word: object) -> str:
    return word.upper() if isinstance(word, str) and word.upper() in STRATEGIES else EAGER
