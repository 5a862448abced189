"""Budgets of projects and users, what is spent of them, and the warnings that were issued.

Only `spent` computes what was spent: a sum over jobs without nodes, and a line over time for each
job with nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from secrets import token_hex
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)

from holdfast.domain.access.audit import AuditAction
from holdfast.domain.billing.running_cost import MS_PER_HOUR, CostLine, to_ms
from holdfast.domain.budgets import (
    SPENT_PERCENT,
    Budget,
    BudgetBalance,
    BudgetScope,
    Month,
    OnReached,
)
from holdfast.domain.events import (
    Event,
    Guard,
    GuardTripped,
    LaunchRequested,
    ResumeRequested,
    Submitted,
)
from holdfast.domain.jobs.job import Job
from holdfast.domain.notifications.events import Notification, NotificationKind
from holdfast.errors import BudgetSpent, NotFound
from holdfast.ports import Clock
from holdfast.store import audit_log, event_log
from holdfast.store.database import reading, writing
from holdfast.store.notifications import outbox
from holdfast.store.notifications.channels import budget_subscriber_ids
from holdfast.store.tables.billing import budget_warnings, budgets
from holdfast.store.tables.jobs import jobs, removed_jobs

_STARTING_EVENTS: Final = (Submitted, ResumeRequested, LaunchRequested)
"""Events after which a job will have nodes."""


class Budgets:
    """The budgets of the service."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def set_budget(self, budget: Budget, action: AuditAction) -> None:
        """Set or replace a budget.

        Its warnings are issued again for what is spent in this month.
        """
        with writing(self._engine) as connection:
            if not connection.execute(update(budgets).where(*_key_conditions(budget)).values(**_row(budget))).rowcount:  # fmt: skip
                connection.execute(insert(budgets).values(**_row(budget)))
            issued = budget_warnings.c.scope == budget.scope.value, budget_warnings.c.name == budget.name  # fmt: skip
            connection.execute(delete(budget_warnings).where(*issued))
            audit_log.append(connection, action, self._clock.now())

    def remove(self, scope: BudgetScope, name: str, action: AuditAction) -> None:
        """Remove a budget, so that spending is unlimited.

        Raises:
            NotFound: the budget does not exist.
        """
        with writing(self._engine) as connection:
            mine = budgets.c.scope == scope.value, budgets.c.name == name
            if not connection.execute(delete(budgets).where(*mine)).rowcount:
                raise NotFound(f"there is no budget of {scope} {name}")
            audit_log.append(connection, action, self._clock.now())

    def balances(self, now: datetime) -> list[BudgetBalance]:
        """All budgets with what is spent of them, projects first."""
        order = budgets.c.scope, budgets.c.name
        with reading(self._engine) as connection:
            rows = connection.execute(select(budgets).order_by(*order)).mappings()
            return [read_balance(connection, _budget(row), now) for row in rows]

    def balances_for(self, project: str, owner: str, now: datetime) -> tuple[BudgetBalance, ...]:
        """The budgets from which a job of this project and owner is paid."""
        with reading(self._engine) as connection:
            return tuple(_balances(connection, project, owner, now))

    def record_warnings(self, balance: BudgetBalance, now: datetime) -> tuple[int, ...]:
        """Percentages for which a warning is due now; records them, each once a month."""
        due = balance.due_warnings(now)
        if not due or set(due) <= set(self.warned(balance.budget, now)):
            return ()  # The usual case needs no write transaction.
        with writing(self._engine) as connection:
            known = _warned(connection, balance.budget, now)
            fresh = tuple(percent for percent in due if percent not in known)
            _insert_warnings(connection, balance, now, fresh)
        return fresh

    def warned(self, budget: Budget, now: datetime) -> tuple[int, ...]:
        """Percentages for which warnings were issued in this month, ascending."""
        with reading(self._engine) as connection:
            return tuple(_warned(connection, budget, now))


def spent(
    connection: Connection, scope: BudgetScope, name: str, month: Month, now: datetime
) -> tuple[int, int]:
    """Spending in a month until `now`, and the hourly cost of running nodes.

    Both are of a project or user, in micro-dollars.
    """
    mine = (jobs.c.project if scope is BudgetScope.PROJECT else jobs.c.owner) == name
    is_ours = jobs.c.paid_seq == jobs.c.seq
    paid = 0
    for table, is_counted in ((jobs, is_ours), (removed_jobs, true())):
        payer = table.c.project if scope is BudgetScope.PROJECT else table.c.owner
        over = select(func.coalesce(func.sum(table.c.last_month_micros), 0))
        over = over.where(payer == name, table.c.last_month == str(month), is_counted)
        paid += int(connection.execute(over).scalar_one())
    by_line, on_line = _line_costs(month, now)
    is_line = and_(is_ours, jobs.c.last_month.is_(None), on_line)
    total = select(by_line, func.coalesce(func.sum(jobs.c.meter_micros_per_hour), 0))
    row = connection.execute(total.where(mine, is_line)).one()
    paid, rate = paid + int(row[0]), int(row[1])
    # Nodes of several prices, and jobs that a different version has written since.
    is_known = or_(is_line, and_(is_ours, jobs.c.last_month.is_not(None)))
    rest = select(jobs.c.id, jobs.c.fold).where(mine, is_known.is_not(True))
    for job_id, fold in connection.execute(rest).all():
        account = event_log.load(connection, job_id, fold).account
        rate += account.micros_per_hour
        paid += account.paid_micros_in(month, now)
    return paid, rate


def _line_costs(month: Month, now: datetime) -> tuple[ColumnElement[int], ColumnElement[bool]]:
    """Spending in a month until `now` of jobs with a cost line, and a condition for these jobs."""
    line_month, micros, rest, per_hour, since_ms = (
        jobs.c[f"meter_{name}"] for name in CostLine._fields
    )
    begin_ms, end_ms = to_ms(month.start), to_ms(min(now, month.end))

    def run_up(by_ms: int) -> ColumnElement[int]:
        # Hours and the rest separately: their product has to fit into 64 bits.
        span = by_ms - since_ms
        part = (rest + per_hour * (span % MS_PER_HOUR)) // MS_PER_HOUR
        return per_hour * (span // MS_PER_HOUR) + part

    earlier = case((line_month == str(month), micros), else_=-run_up(begin_ms))
    is_on_line = and_(line_month <= str(month), since_ms <= end_ms)
    return func.coalesce(func.sum(run_up(end_ms) + earlier), 0), is_on_line


def read_balance(connection: Connection, budget: Budget, now: datetime) -> BudgetBalance:
    """A budget with what is spent of it in this month."""
    paid, rate = spent(connection, budget.scope, budget.name, Month.containing(now), now)
    was_reached = SPENT_PERCENT in _warned(connection, budget, now)
    return BudgetBalance(
        budget=budget, at=now, spent_micros=paid, micros_per_hour=rate, was_reached=was_reached
    )


def enforce_budgets(
    connection: Connection, job: Job, events: Sequence[Event], now: datetime
) -> None:
    """Reject starts for which the budgets have no room, in the transaction that starts the job.

    Once a job is paused for a budget, that budget counts as spent for this month or until it is set
    again.

    Raises:
        BudgetSpent: there is no room.
    """
    if any(isinstance(event, GuardTripped) and event.guard is Guard.BUDGET for event in events):
        for each in _balances(connection, job.project, job.owner, now):
            if each.blocks_jobs(now, 0 if job.placed else job.micros_per_hour):
                _insert_warnings(connection, each, now, [SPENT_PERCENT])
    if any(isinstance(event, _STARTING_EVENTS) for event in events):
        for each in _balances(connection, job.project, job.owner, now):
            if each.blocks_jobs(now, job.micros_per_hour):
                raise BudgetSpent(f"job {job.id} cannot start: {each.spent_message(now)}")


def _balances(
    connection: Connection, project: str, owner: str, now: datetime
) -> Iterator[BudgetBalance]:
    payers = [(BudgetScope.PROJECT.value, project), (BudgetScope.USER.value, owner)]
    query = select(budgets).where(tuple_(budgets.c.scope, budgets.c.name).in_(payers))
    for row in connection.execute(query).mappings().all():
        yield read_balance(connection, _budget(row), now)


def _insert_warnings(
    connection: Connection, balance: BudgetBalance, now: datetime, percents: Sequence[int]
) -> None:
    """Record warnings that were not recorded yet."""
    month, known = str(Month.containing(now)), _warned(connection, balance.budget, now)
    owner = {"scope": balance.budget.scope.value, "name": balance.budget.name, "month": month}
    counted = {"at": now, "spent_micros": balance.spent_by(now)}
    fresh = [percent for percent in percents if percent not in known]
    if fresh:
        rows = [{**owner, **counted, "percent": percent} for percent in fresh]
        connection.execute(insert(budget_warnings), rows)
        _notify(connection, balance, max(fresh), now)


def _notify(connection: Connection, balance: BudgetBalance, percent: int, now: datetime) -> None:
    """Notify of what is spent: one notification, of the highest percentage reached."""
    budget = balance.budget
    # A budget that is set again warns again, maybe at the same percentage.
    period = f"{budget.scope}-{budget.name}-{Month.containing(now)}-{percent}-{token_hex(4)}"
    item = Notification(
        id=f"budget-{period}",
        kind=NotificationKind.BUDGET,
        at=now,
        text=balance.warning(percent, now),
    )
    subscribers = budget_subscriber_ids(connection, budget.scope, budget.name)
    outbox.enqueue(connection, subscribers, item, now)


def _warned(connection: Connection, budget: Budget, now: datetime) -> list[int]:
    query = select(budget_warnings.c.percent).where(
        budget_warnings.c.scope == budget.scope.value,
        budget_warnings.c.name == budget.name,
        budget_warnings.c.month == str(Month.containing(now)),
    )
    return list(connection.execute(query.order_by(budget_warnings.c.percent)).scalars())


def _key_conditions(budget: Budget) -> tuple[Any, Any]:
    return budgets.c.scope == budget.scope.value, budgets.c.name == budget.name


def _row(budget: Budget) -> dict[str, Any]:
    return {
        "scope": budget.scope.value,
        "name": budget.name,
        "monthly_micros": budget.monthly_micros,
        "warn_at": list(budget.warn_at),
        "on_reached": budget.on_reached.value,
    }


def _budget(row: Any) -> Budget:
    return Budget(
        scope=BudgetScope(row["scope"]),
        name=row["name"],
        monthly_micros=row["monthly_micros"],
        warn_at=tuple(row["warn_at"]),
        on_reached=OnReached(row["on_reached"]),
    )
