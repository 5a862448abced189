"""Client for budgets, quotas, the queue, notice times, preemption costs and price history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from holdfast.api.schemas.billing import BudgetIn, BudgetOut
from holdfast.api.schemas.jobs import JobOut
from holdfast.api.schemas.preemptions import NoticesOut, PreemptionCostsOut
from holdfast.api.schemas.prices import PriceHistoryOut
from holdfast.api.schemas.queue import PriorityIn, QueueOut, QuotaIn, QuotaOut
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class BudgetsClient:
    """Client for budgets."""

    client: Client

    def budgets(self) -> list[BudgetOut]:
        """List all budgets with the amount spent this month."""
        return self.client.get(list[BudgetOut], "GET", "/v1/budgets")

    def set_budget(self, scope: str, name: str, budget: BudgetIn) -> BudgetOut:
        """Set the budget of a project or user and return it."""
        body = budget.model_dump(exclude_unset=True)
        return self.client.get(BudgetOut, "PUT", _path(scope, name), json=body)

    def remove(self, scope: str, name: str) -> None:
        """Remove the budget of a project or user."""
        self.client.send("DELETE", _path(scope, name))


def _path(scope: str, name: str) -> str:
    return f"/v1/budgets/{scope}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class MarketClient:
    """Client for preemptions by notice and by cost, and for price history.

    `asked` of the preemptions: since, until, zone, type, project.
    """

    client: Client

    def notices(self, **asked: str | None) -> NoticesOut:
        """Return the distribution of notice times before preemptions."""
        return self.client.get(
            NoticesOut, "GET", "/v1/preemptions/notices", params=_query_params(asked)
        )

    def preemption_costs(self, limit: int, **asked: str | None) -> PreemptionCostsOut:
        """Return the jobs with the most expensive lost work."""
        params = {**_query_params(asked), "limit": limit}
        return self.client.get(PreemptionCostsOut, "GET", "/v1/preemptions/jobs", params=params)

    def price_history(self, accelerator: str, **asked: str | int | None) -> PriceHistoryOut:
        """Return changes of spot prices. `asked`: cloud, region, since, until, limit."""
        params = {**_query_params(asked), "accelerator": accelerator}
        return self.client.get(PriceHistoryOut, "GET", "/v1/prices/history", params=params)


def _query_params(asked: Mapping[str, str | int | None]) -> dict[str, str | int]:
    return {word: value for word, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True)
class QueueClient:
    """Client for quotas and for the queue of jobs that wait for room in them.

    `scope` is service, project or user; the service needs no name.
    """

    client: Client

    def quotas(self) -> list[QuotaOut]:
        """List the quotas that the caller may see, with what is held of them."""
        return self.client.get(list[QuotaOut], "GET", "/v1/quotas")

    def set_quota(self, scope: str, name: str, quota: QuotaIn) -> QuotaOut:
        """Set or replace a quota and return it; amounts that are not given are unlimited."""
        body = quota.model_dump(exclude_unset=True)
        return self.client.get(QuotaOut, "PUT", _quota_path(scope, name), json=body)

    def remove_quota(self, scope: str, name: str) -> None:
        """Remove a quota."""
        self.client.send("DELETE", _quota_path(scope, name))

    def queue(self) -> QueueOut:
        """Return the waiting jobs in the order of admission."""
        return self.client.get(QueueOut, "GET", "/v1/queue")

    def set_priority(self, job_id: str, priority: int) -> JobOut:
        """Change the priority of a job and return the job."""
        body = PriorityIn(priority=priority).model_dump()
        return self.client.get(JobOut, "PATCH", f"/v1/jobs/{job_id}/priority", json=body)


def _quota_path(scope: str, name: str) -> str:
    """The address of a quota.

    That of the service has no name.
    """
    whose = "" if scope == "service" else f"/{quote(name, safe='')}"
    return f"/v1/quotas/{scope}{whose}"
