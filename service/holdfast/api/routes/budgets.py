"""Monthly budgets of projects and users with their spending."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Response
from pydantic import TypeAdapter, ValidationError

from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.billing import BudgetIn, BudgetOut
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.budgets import Budget, BudgetBalance, BudgetScope, Month, OnReached
from holdfast.domain.jobfile.limits import MICROS_PER_USD, Usd
from holdfast.errors import BadLimits, NotFound, ValidationIssue
from holdfast.services import Services
from holdfast.store.billing.cost_request import CostRequest, GroupBy
from holdfast.store.billing.costs import CostTotal

router = Router(prefix="/v1/budgets", tags=["budgets"])

MOST: Final = 100_000
"""Maximum number of projects or users whose price sources are read.

A lower value would present other budgets as based on cloud prices.
"""
BY: Final = {BudgetScope.PROJECT: GroupBy.PROJECT, BudgetScope.USER: GroupBy.USER}
Name = Annotated[str, Path(min_length=1, max_length=100)]


@router.get("", response_model=list[BudgetOut])
def list_budgets(services: TheServices, caller: TheCaller) -> list[BudgetOut]:
    """List the budgets of the caller and their projects, with this month's spending.

    Projects come first.
    """
    balances = services.journal.budgets.balances(services.clock.now())
    seen = [balance for balance in balances if _is_seen(caller, balance.budget)]
    sums = {scope: _sums(services, scope) for scope in {balance.budget.scope for balance in seen}}
    return [_view(services, balance, sums[balance.budget.scope]) for balance in seen]


@router.put("/project/{project}", response_model=BudgetOut)
def set_project_budget(
    project: Name, body: BudgetIn, services: TheServices, actor: TheActor
) -> BudgetOut:
    """Set the monthly budget of a project.

    Takes effect at once, including costs of this month so far.
    """
    services.users.project(project)
    return _set(services, BudgetScope.PROJECT, project, body, actor)


@router.put("/user/{user}", response_model=BudgetOut)
def set_user_budget(
    user: Name, body: BudgetIn, services: TheServices, actor: TheActor
) -> BudgetOut:
    """Set the monthly budget of a user over all projects. The user need not exist yet."""
    return _set(services, BudgetScope.USER, user, body, actor)


@router.delete("/project/{project}", status_code=204)
def remove_project_budget(project: Name, services: TheServices, actor: TheActor) -> Response:
    """Remove the budget of a project."""
    return _remove(services, BudgetScope.PROJECT, project, actor)


@router.delete("/user/{user}", status_code=204)
def remove_user_budget(user: Name, services: TheServices, actor: TheActor) -> Response:
    """Remove the budget of a user."""
    return _remove(services, BudgetScope.USER, user, actor)


def _set(
    services: Services, scope: BudgetScope, name: str, body: BudgetIn, actor: Actor
) -> BudgetOut:
    budget = Budget(
        scope=scope,
        name=name,
        monthly_micros=_micros(body.monthly_usd),
        warn_at=tuple(body.warn_at),
        on_reached=OnReached(body.on_reached),
    )
    after = {"monthly_micros": budget.monthly_micros, "on_reached": budget.on_reached}
    services.journal.budgets.set_budget(
        budget, actor.audit_action("budget.set", f"{scope}/{name}", after=after)
    )
    services.nudge()
    balances = services.journal.budgets.balances(services.clock.now())
    found = [p for p in balances if (p.budget.scope, p.budget.name) == (scope, name)]
    if not found:
        raise NotFound(
            f"the budget of {scope} {name} was removed concurrently; set it again if needed"
        )
    return _view(services, found[0], _sums(services, scope))


def _remove(services: Services, scope: BudgetScope, name: str, actor: Actor) -> Response:
    entry = actor.audit_action("budget.remove", f"{scope}/{name}")
    services.journal.budgets.remove(scope, name, entry)
    return Response(status_code=204)


def _is_seen(caller: Caller, budget: Budget) -> bool:
    if budget.scope is BudgetScope.PROJECT:
        return caller.visible_projects is None or budget.name in caller.visible_projects
    return caller.may(Action.MANAGE_SERVICE) or (
        caller.name == budget.name and bool(caller.visible_projects)
    )


def _micros(usd: float | str) -> int:
    try:
        return int(TypeAdapter(Usd).validate_python(usd) * MICROS_PER_USD)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BadLimits((ValidationIssue("#/monthly_usd", message),)) from error


def _sums(services: Services, scope: BudgetScope) -> dict[str, CostTotal]:
    """Return this month's costs of all projects or users by name.

    The stored budget has only the amount, not its price kind.
    """
    now = services.clock.now()
    question = CostRequest(by=BY[scope], since=Month.containing(now).start.date(), limit=MOST)
    return {cost.key: cost for cost in services.costs.totals(question, now).totals}


def _view(services: Services, balance: BudgetBalance, sums: dict[str, CostTotal]) -> BudgetOut:
    budget, now = balance.budget, services.clock.now()
    cost = sums.get(budget.name, CostTotal(budget.name))
    return BudgetOut(
        scope=budget.scope,
        name=budget.name,
        monthly_micros=budget.monthly_micros,
        warn_at=list(budget.warn_at),
        on_reached=budget.on_reached,
        month=str(Month.containing(now)),
        spent_micros=balance.spent_by(now),
        committed_micros=balance.committed_micros,
        micros_per_hour=balance.micros_per_hour,
        warned_at=list(services.journal.budgets.warned(budget, now)),
        is_spent=balance.is_spent(now),
        simulated=cost.simulated,
        is_price_estimate=cost.is_price_estimate,
    )
