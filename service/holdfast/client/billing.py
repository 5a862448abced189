"""Costs of many jobs, and budgets."""

from __future__ import annotations

from holdfast.api.schemas.billing import BudgetIn, BudgetOut, CostsOut
from holdfast.client.calls import (
    AsyncResource,
    Call,
    Resource,
    empty_call,
    endpoint,
    get,
    json_call,
    url_path,
)


class BillingCalls:
    """Calls about costs of many jobs, and about budgets."""

    @endpoint
    def costs(
        self,
        *,
        by: str,
        each: str | None = None,
        since: str | None = None,
        until: str | None = None,
        project: str | None = None,
        limit: int | None = None,
    ) -> Call[CostsOut]:
        """Return total costs of jobs by user, project, tag, zone or day."""
        asked = {
            "by": by,
            "each": each,
            "since": since,
            "until": until,
            "project": project,
            "limit": limit,
        }
        return get(CostsOut, "/v1/costs", asked)

    @endpoint
    def budgets(self) -> Call[list[BudgetOut]]:
        """List all budgets with the amount spent this month."""
        return get(list[BudgetOut], "/v1/budgets")

    @endpoint
    def set_budget(self, scope: str, name: str, budget: BudgetIn) -> Call[BudgetOut]:
        """Set the budget of a project or user and return it. `scope`: project or user."""
        body = budget.model_dump(exclude_unset=True)
        return json_call(BudgetOut, "PUT", url_path("budgets", scope, name), json=body)

    @endpoint
    def remove_budget(self, scope: str, name: str) -> Call[None]:
        """Remove the budget of a project or user."""
        return empty_call("DELETE", url_path("budgets", scope, name))


class BillingClient(BillingCalls, Resource):
    """Costs of many jobs, and budgets."""


class AsyncBillingClient(BillingCalls, AsyncResource):
    """Costs of many jobs, and budgets, for asynchronous programs."""
