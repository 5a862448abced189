"""Users of the demonstration with their projects, roles, budgets and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ADMIN: Final = "amara"
MEMBERS: Final[Mapping[str, Mapping[str, str]]] = {
    "nlp": {"amara": "admin", "ben": "member", "chen": "member", "emil": "viewer"},
    "vision": {"chen": "admin", "dilek": "member", "ben": "viewer"},
    "speech": {"emil": "admin", "amara": "member"},
}
USERS: Final = ("amara", "ben", "chen", "dilek", "emil")
BUDGETS: Final[tuple[tuple[float, str, Mapping[str, object]], ...]] = (
    (573.0, "project/nlp", {"monthly_usd": 9_000, "warn_at": [50, 80, 95], "on_reached": "warn"}),
    (
        573.1,
        "project/vision",
        {"monthly_usd": 6_000, "warn_at": [50, 80, 95], "on_reached": "pause"},
    ),
    (573.2, "project/speech", {"monthly_usd": 2_000, "warn_at": [80], "on_reached": "pause"}),
    (596.0, "user/ben", {"monthly_usd": 7_500, "warn_at": [80], "on_reached": "warn"}),
)
"""Hours after the start, path of the budget, and the budget."""
QUOTAS: Final[tuple[tuple[float, str, Mapping[str, object]], ...]] = (
    (700.0, "user/emil", {"jobs": 1}),
    (700.1, "project/nlp", {"gpus": 64, "may_pause_for_priority": True}),
    (700.2, "service", {"nodes": 24}),
)
"""Hours after the start, path of the quota, and the quota."""
