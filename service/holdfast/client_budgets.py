"""Budgets as a Python object, beside the jobs in `holdfast.client`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from holdfast.api.budget_schemas import BudgetIn, BudgetOut
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class BudgetsClient:
    """The budgets of a service."""

    client: Client

    def budgets(self) -> list[BudgetOut]:
        """All of them, with what is spent of each in this month."""
        return self.client.ask(list[BudgetOut], "GET", "/v1/budgets")

    def put(self, scope: str, name: str, budget: BudgetIn) -> BudgetOut:
        """The budget of a project or a user, as it is from now on."""
        body = budget.model_dump(exclude_unset=True)
        return self.client.ask(BudgetOut, "PUT", _path(scope, name), json=body)

    def remove(self, scope: str, name: str) -> None:
        """Let a project or a user spend what they like."""
        self.client.tell("DELETE", _path(scope, name))


def _path(scope: str, name: str) -> str:
    return f"/v1/budgets/{scope}/{quote(name, safe='')}"
