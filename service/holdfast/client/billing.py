"""Budgets as a Python object, beside the jobs in `holdfast.client`.

What the market has taken, in other sums than by place, and what it has asked for nodes; beside `Client` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from holdfast.api.schemas.billing import BudgetIn, BudgetOut
from holdfast.api.schemas.preemptions import NoticesOut, PreemptionCostsOut
from holdfast.api.schemas.prices import PriceHistoryOut
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class BudgetsClient:
    """The budgets of a service."""

    client: Client

    def budgets(self) -> list[BudgetOut]:
        """All of them, with what is spent of each in this month."""
        return self.client.get(list[BudgetOut], "GET", "/v1/budgets")

    def put(self, scope: str, name: str, budget: BudgetIn) -> BudgetOut:
        """The budget of a project or a user, as it is from now on."""
        body = budget.model_dump(exclude_unset=True)
        return self.client.get(BudgetOut, "PUT", _path(scope, name), json=body)

    def remove(self, scope: str, name: str) -> None:
        """Let a project or a user spend what they like."""
        self.client.send("DELETE", _path(scope, name))


def _path(scope: str, name: str) -> str:
    return f"/v1/budgets/{scope}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class MarketClient:
    """Losses by their warning, and by the job that paid for them (`asked`: since, until, zone, type, project); prices over time."""

    client: Client

    def notices(self, **asked: str | None) -> NoticesOut:
        """How much warning there was before nodes were taken."""
        return self.client.get(NoticesOut, "GET", "/v1/preemptions/notices", params=_said(asked))

    def worst(self, limit: int, **asked: str | None) -> PreemptionCostsOut:
        """The jobs whose lost work has cost the most."""
        params = {**_said(asked), "limit": limit}
        return self.client.get(PreemptionCostsOut, "GET", "/v1/preemptions/jobs", params=params)

    def price_history(self, accelerator: str, **asked: str | int | None) -> PriceHistoryOut:
        """How spot prices have changed. `asked`: cloud, region, since, until, limit."""
        params = {**_said(asked), "accelerator": accelerator}
        return self.client.get(PriceHistoryOut, "GET", "/v1/prices/history", params=params)


def _said(asked: Mapping[str, str | int | None]) -> dict[str, str | int]:
    return {word: value for word, value in asked.items() if value is not None}
