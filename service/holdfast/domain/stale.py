"""Stale words of older texts, put right and reported.

SkyPilot 0.14 refuses `spot_recovery`, never sets `SKYPILOT_HEAD_IP`, and knows no recovery strategy called `auto`;
tutorials still use all three.
"""

from __future__ import annotations

import re
from typing import Any, Final

_RECOVERY: Final = "EAGER_NEXT_REGION"
_STRATEGIES: Final = frozenset({"FAILOVER", "EAGER_NEXT_REGION"})
_HEAD_IP: Final = re.compile(r"\$\{?SKYPILOT_HEAD_IP\b")
_HEAD_IP_LINE: Final = 'export SKYPILOT_HEAD_IP="$(head -n1 <<< "$SKYPILOT_NODE_IPS")"\n'


def put_right(raw: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The task in present words, and a sentence for each word that was changed. `raw` itself is left alone."""
    notes: list[str] = []
    task = dict(raw)
    if isinstance(task.get("resources"), dict):
        task["resources"] = _resources(task["resources"], notes)
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
    fresh = dict(resources)
    if "spot_recovery" in fresh:
        strategy = _strategy(fresh.pop("spot_recovery"))
        fresh.setdefault("job_recovery", strategy)
        notes.append(
            f"resources: spot_recovery is now job_recovery; it is set to {fresh['job_recovery']}"
        )
    elif (
        isinstance(fresh.get("job_recovery"), str)
        and fresh["job_recovery"].upper() not in _STRATEGIES
    ):
        notes.append(
            f"resources: job_recovery {fresh['job_recovery']!r} is no strategy; it is set to {_RECOVERY}"
        )
        fresh["job_recovery"] = _RECOVERY
    if "infra" not in fresh and isinstance(fresh.get("cloud"), str):
        places = [fresh.pop("cloud"), fresh.pop("region", None), fresh.pop("zone", None)]
        fresh["infra"] = "/".join(str(place) for place in places if place)
        notes.append(
            f"resources: cloud, region and zone are now one word; infra is set to {fresh['infra']}"
        )
    return fresh


def _strategy(word: object) -> str:
    return word.upper() if isinstance(word, str) and word.upper() in _STRATEGIES else _RECOVERY
