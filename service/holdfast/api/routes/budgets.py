"""Budgets of projects and users: what they may spend in a month, and what they have."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Response
from pydantic import TypeAdapter, ValidationError

from holdfast.api.auth.authentication import TheCaller, TheDoer
from holdfast.api.dependencies import The
from holdfast.api.routing import Router
from holdfast.api.schemas.billing import BudgetIn, BudgetOut
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.budgets import Budget, BudgetBalance, BudgetScope, Month, OnReached
from holdfast.domain.jobfile.limits import MICROS_PER_USD, Usd
from holdfast.errors import BadLimits, Flaw, NotFound
from holdfast.services import Services
from holdfast.store.billing.costs import CostTotal, GroupBy, Question

router = Router(prefix="/v1/budgets", tags=["budgets"])

MOST: Final = 100_000
"""Projects, or users, whose prices are told. Fewer: budgets of others would pass for what clouds have told."""
BY: Final = {BudgetScope.PROJECT: GroupBy.PROJECT, BudgetScope.USER: GroupBy.USER}
Name = Annotated[str, Path(min_length=1, max_length=100)]


@router.get("", response_model=list[BudgetOut])
def list_budgets(services: The, caller: TheCaller) -> list[BudgetOut]:
    """The budgets of the caller and of their projects, projects first, with what is spent of each in this month."""
    purses = services.journal.budgets.purses(services.clock.now())
    seen = [purse for purse in purses if _is_seen(caller, purse.budget)]
    sums = {scope: _sums(services, scope) for scope in {purse.budget.scope for purse in seen}}
    return [_view(services, purse, sums[purse.budget.scope]) for purse in seen]


@router.put("/project/{project}", response_model=BudgetOut)
def set_project_budget(project: Name, body: BudgetIn, services: The, doer: TheDoer) -> BudgetOut:
    """Say what a project may spend in a month. Holds from now on, for what this month has cost already, too."""
    services.people.project(project)
    return _set(services, BudgetScope.PROJECT, project, body, doer)


@router.put("/user/{user}", response_model=BudgetOut)
def set_user_budget(user: Name, body: BudgetIn, services: The, doer: TheDoer) -> BudgetOut:
    """The same for a user, in all projects together. They need not be there yet."""
    return _set(services, BudgetScope.USER, user, body, doer)


@router.delete("/project/{project}", status_code=204)
def remove_project_budget(project: Name, services: The, doer: TheDoer) -> Response:
    """Let a project spend what it likes."""
    return _remove(services, BudgetScope.PROJECT, project, doer)


@router.delete("/user/{user}", status_code=204)
def remove_user_budget(user: Name, services: The, doer: TheDoer) -> Response:
    """Let a user spend what they like."""
    return _remove(services, BudgetScope.USER, user, doer)


def _set(
    services: Services, scope: BudgetScope, name: str, body: BudgetIn, doer: Actor
) -> BudgetOut:
    budget = Budget(
        scope=scope,
        name=name,
        monthly_micros=_micros(body.monthly_usd),
        warn_at=tuple(body.warn_at),
        on_reached=OnReached(body.on_reached),
    )
    after = {"monthly_micros": budget.monthly_micros, "on_reached": budget.on_reached}
    services.journal.budgets.put(budget, doer.did("budget.set", f"{scope}/{name}", after=after))
    services.nudge()
    purses = services.journal.budgets.purses(services.clock.now())
    found = [p for p in purses if (p.budget.scope, p.budget.name) == (scope, name)]
    if not found:
        raise NotFound(f"the budget of {scope} {name} was removed meanwhile")
    return _view(services, found[0], _sums(services, scope))


def _remove(services: Services, scope: BudgetScope, name: str, doer: Actor) -> Response:
    deed = doer.did("budget.remove", f"{scope}/{name}")
    services.journal.budgets.remove(scope, name, deed)
    return Response(status_code=204)


def _is_seen(caller: Caller, budget: Budget) -> bool:
    if budget.scope is BudgetScope.PROJECT:
        return caller.sees is None or budget.name in caller.sees
    return caller.may(Action.MANAGE_SERVICE) or (caller.name == budget.name and bool(caller.sees))


def _micros(usd: float | str) -> int:
    try:
        return int(TypeAdapter(Usd).validate_python(usd) * MICROS_PER_USD)
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BadLimits((Flaw("#/monthly_usd", told),)) from error


def _sums(services: Services, scope: BudgetScope) -> dict[str, CostTotal]:
    """What all projects, or all users, have cost in this month, by name. A purse says how much is spent, these what kind of money."""
    now = services.clock.now()
    question = Question(by=BY[scope], since=Month.of(now).start.date(), limit=MOST)
    return {cost.key: cost for cost in services.costs.ask(question, now).sums}


def _view(services: Services, purse: BudgetBalance, sums: dict[str, CostTotal]) -> BudgetOut:
    budget, now = purse.budget, services.clock.now()
    cost = sums.get(budget.name, CostTotal(budget.name))
    return BudgetOut(
        scope=budget.scope,
        name=budget.name,
        monthly_micros=budget.monthly_micros,
        warn_at=list(budget.warn_at),
        on_reached=budget.on_reached,
        month=str(Month.of(now)),
        spent_micros=purse.spent_by(now),
        committed_micros=purse.committed_micros,
        micros_per_hour=purse.micros_per_hour,
        warned_at=list(services.journal.budgets.warned(budget, now)),
        is_spent=purse.is_spent(now),
        simulated=cost.simulated,
        is_price_estimate=cost.is_price_estimate,
    )
