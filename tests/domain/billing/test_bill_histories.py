"""Costs of a bill against a slow and simple ledger that pays for each millisecond alone.

Histories are random: mixed groups of nodes, nodes that are lost and replaced while others run, and prices that change before, during and after their
lifetime, at the edges of phases and over midnight. Changes are reported late and twice, by
launchers whose clocks overlap. A seed always produces the same history. LEDGER_HISTORIES sets the
number of histories.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import TypeAlias

import pytest
from holdfast.domain.billing.allocation import CostAllocation, allocate_costs
from holdfast.domain.billing.bill import AttemptBill, Bill, Phases, compute_bill
from holdfast.domain.billing.running_cost import RETAINED_METERS
from holdfast.domain.events import (
    Event,
    NodeLost,
    NodeReplaced,
    NodesReady,
    Outcome,
    PriceChanged,
)
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.preemptions.placements import placement_records
from holdfast.errors import IllegalTransition
from support.billing_oracle import MS_PER_HOUR, Doing, Life, Plan, end, moment_phase
from support.events import DAWN, at, guard_end, launched, lost, noticed, ready, submitted
from support.repetitions import repeat_count

HISTORIES = int(os.environ.get("LEDGER_HISTORIES", repeat_count(200, 2000)))
MIDNIGHT_S = 12 * 3600
"""Seconds from the start of the history, at noon, to midnight."""
RateChange: TypeAlias = PriceChanged | NodeLost | NodeReplaced
Cells: TypeAlias = Counter[tuple[int, int, str, date]]
"""Micro-dollars by attempt, group, phase and day."""
PRICES = (1, 7, MS_PER_HOUR, 7_777_777, 123_456_789, 99_999_999_999)


def random_history(draw: random.Random) -> Life:
    """A random job history, which may begin shortly before midnight."""
    life = Life(began_ms=draw.choice([0, 1000 * MIDNIGHT_S - draw.randrange(150)]))
    last = draw.randint(1, 5)
    for attempt in range(1, last + 1):
        life.live(attempt, _with_restarts(draw, _plan(draw)))
        if draw.random() < 0.3:
            life.log.append(noticed(life.now_s, attempt=attempt, step=0))
        if attempt < last:
            life.log.append(lost(life.now_s, attempt=attempt))
    how = draw.choice([None, "recovers", "tripped", *Outcome])
    if how == "tripped":
        life.log += guard_end(life.now_s)
        life.end = Outcome.FAILED
    else:
        end(life, last, how)
    return life


def _plan(draw: random.Random) -> Plan:
    groups = tuple(_group(draw) for _ in range(draw.choice([0, 0, 1, 2, 3])))
    plan = Plan(
        wait=draw.randrange(10),
        setup=draw.randint(1, 9),
        restore=draw.randint(-1, 9),
        laps=[(draw.randint(1, 9), draw.randrange(5)) for _ in range(draw.randrange(4))],
        sprint=draw.randrange(10),
        pause=draw.choice([0, 0, 1, 3]),
        idle=draw.randint(-2, 4),
        damaged=draw.choice([0, 0, 0, 1, 2]),
        micros=draw.choice(PRICES),
        groups=groups,
    )
    plan = replace(plan, changes=tuple(_changes(draw, len(groups) or 1)))
    # Launchers that report lost nodes have no groups and report no price changes.
    return plan if plan.groups or plan.changes else _with_node_changes(draw, plan)


def _with_node_changes(draw: random.Random, plan: Plan) -> Plan:
    """Some attempts whose nodes are lost and replaced, also at the same time and after their end."""
    running = nodes = draw.randint(1, 4)
    changes, after_ms = [], draw.randint(-2, 9)
    for _ in range(draw.choice([0, 2, 3, 6])):
        is_loss = running == nodes or (running > 0 and draw.random() < 0.5)
        running += -1 if is_loss else 1
        changes.append((after_ms, running, running * draw.choice(PRICES)))
        after_ms += draw.choice([0, 1, 7, 30])
    return replace(plan, nodes=nodes, node_changes=tuple(changes))


def _with_restarts(draw: random.Random, plan: Plan) -> Plan:
    """Some attempts whose ranks fail and start again."""
    again = [_plan(draw) for _ in range(draw.choice([0, 0, 0, 1, 2]))]
    return replace(plan, restarts=tuple(again))


def _group(draw: random.Random) -> NodeGroup:
    return NodeGroup(
        nodes=draw.randint(1, 4),
        zone=draw.choice("abc"),
        is_spot=draw.random() < 0.7,
        micros_per_hour=draw.choice(PRICES),
        on_demand_micros_per_hour=draw.choice(PRICES),
    )


def _changes(draw: random.Random, groups: int) -> list[tuple[int, int, int]]:
    """Price changes before and after the nodes, of unknown groups, and duplicates."""
    changes = [
        (draw.randint(-5, 60), draw.randrange(groups + 1), draw.choice(PRICES))
        for _ in range(draw.choice([0, 0, 1, 2, 4]))
    ]
    return changes + changes[: draw.choice([0, 0, 1])]


def paid_by_the_millisecond(life: Life) -> tuple[Cells, Cells]:
    """Micro-dollars paid and their on-demand equivalent, paid for each millisecond alone.

    The running sum is rounded down after each millisecond.
    """
    sums = Cells(), Cells()
    run_up = Counter[tuple[int, int, int]]()
    known = {e.attempt: e for e in life.log if isinstance(e, NodesReady)}
    begun = {(moment.attempt, moment.start) for moment in life.moments}
    kept = {start: life.kept(*start) for start in begun}
    changes = [e for e in life.log if isinstance(e, RateChange)]
    for number, moment in enumerate(life.moments):
        if moment.doing is Doing.WAITING:
            continue
        now, nodes = at((life.began_ms + number) / 1000), known[moment.attempt]
        phase = moment_phase(moment, kept[moment.attempt, moment.start])
        if not life.speaks:
            phase = "lost" if moment.attempt in life.losses else "unmeasured"
        for group, _ in enumerate(nodes.parts):
            for which, micros_per_hour in enumerate(_prices(changes, nodes, group, now)):
                key = (moment.attempt, group, which)
                before = run_up[key] // MS_PER_HOUR
                run_up[key] += micros_per_hour
                paid = run_up[key] // MS_PER_HOUR - before
                sums[which][moment.attempt, group, phase, now.date()] += paid
    return sums


def _prices(
    changes: list[RateChange], nodes: NodesReady, group: int, now: datetime
) -> tuple[int, int]:
    """Paid and on-demand price at a time, from a full scan of the log."""
    part, since = nodes.parts[group], nodes.at
    prices = part.micros_per_hour, part.on_demand_micros_per_hour
    for change in changes:
        mine = (change.attempt, change.group) == (nodes.attempt, group)
        # Nodes that were lost or replaced before the start are so from the start.
        is_current = not isinstance(change, PriceChanged) or nodes.at < change.at
        moment = max(change.at, nodes.at)
        if mine and is_current and since <= moment <= now:
            prices, since = (change.micros_per_hour, change.on_demand_micros_per_hour), moment
    return prices


def _check(life: Life, account: Bill) -> None:
    expected, full = paid_by_the_millisecond(life)
    for item in account.attempts:
        for number, group in enumerate(item.groups):
            key = (item.attempt, number)
            assert group.micros == _phases(expected, key)
            assert group.on_demand_micros == _phases(full, key)
        _check_times(life, item)
    assert account.micros.total == sum(expected.values()) == account.paid_micros
    assert account.waiting_ms + account.ms.total == len(life.moments)
    _check_shares(life, account, expected)


def _phases(cells: Cells, key: tuple[int, int]) -> Phases:
    found = Counter[str]()
    for (attempt, group, phase, _), micros in cells.items():
        if (attempt, group) == key:
            found[phase] += micros
    return Phases(**found)


def _check_times(life: Life, item: AttemptBill) -> None:
    """Spans are contiguous, do not overlap, and are not empty."""
    at_ms = item.begin_ms
    for span in item.spans:
        assert (span.begin_ms, span.end_ms > span.begin_ms) == (at_ms, True)
        at_ms = span.end_ms
    assert at_ms == item.end_ms
    assert item.ms.total == sum(
        m.attempt == item.attempt and m.doing is not Doing.WAITING for m in life.moments
    )


def _check_shares(life: Life, account: Bill, expected: Cells) -> None:
    shares = allocate_costs(account)
    assert sum(share.micros.total for share in shares) == account.micros.total
    assert sum((share.ms for share in shares), Phases()) == account.ms
    assert sum(share.waiting_ms for share in shares) == account.waiting_ms
    assert sum(share.on_demand_micros for share in shares) == account.on_demand_micros
    assert sum(share.paid_micros for share in shares) == account.paid_micros
    assert len({(s.attempt, s.zone, s.day) for s in shares}) == len(shares)
    zones = {(e.attempt, n): p.zone for e in life.log if isinstance(e, NodesReady) for n, p in enumerate(e.parts)}  # fmt: skip
    by_place = Counter[tuple[int, str, str, date]]()
    for (attempt, group, phase, day), micros in expected.items():
        by_place[attempt, zones[attempt, group], phase, day] += micros
    for (attempt, zone, phase, day), micros in by_place.items():
        [share] = [s for s in shares if (s.attempt, s.zone, s.day) == (attempt, zone, day)]
        assert getattr(share.micros, phase) == micros
    _check_days(life, shares)
    _check_node_time(life, account, shares)


def _check_node_time(life: Life, account: Bill, shares: list[CostAllocation]) -> None:
    """Node time is counted by the millisecond, in the bill by zone and day, and by the hour."""
    expected = Counter[tuple[int, str, date]]()
    known = {e.attempt: e for e in life.log if isinstance(e, NodesReady)}
    for number, moment in enumerate(life.moments):
        now = at((life.began_ms + number) / 1000)
        for part in known[moment.attempt].parts if moment.doing is not Doing.WAITING else ():
            count = _running_nodes(life, known[moment.attempt], now)
            place = moment.attempt, part.zone, now.date()
            expected[place] += part.nodes if count is None else count
    assert +Counter({(s.attempt, s.zone, s.day): s.node_ms for s in shares}) == +expected
    records = placement_records(life.log, {}, {}, account)
    by_hour = sum(node_ms for record in records for _, _, node_ms in record.hours)
    assert by_hour == expected.total()
    lasted = sum(record.end_ms - record.begin_ms for record in records)
    assert lasted == sum(item.ms.total for item in account.attempts)
    preempted = sum(record.is_preempted for record in records)
    assert preempted == fold("job-1", life.log).preemptions


def _running_nodes(life: Life, nodes: NodesReady, now: datetime) -> int | None:
    """Running nodes at a time; None if no node of the attempt was lost alone."""
    mine = [
        e for e in life.log if isinstance(e, NodeLost | NodeReplaced) and e.attempt == nodes.attempt
    ]
    past = [e for e in mine if e.at <= now]
    return (past[-1].nodes if past else nodes.nodes) if mine else None


def _check_days(life: Life, shares: list[CostAllocation]) -> None:
    days = Counter[date]()
    for number, _ in enumerate(life.moments):
        days[at((life.began_ms + number) / 1000).date()] += 1
    result = Counter[date]()
    for share in shares:
        result[share.day] += share.ms.total + share.waiting_ms
    assert +result == +days


def _with_late_prices(draw: random.Random, log: list[Event]) -> list[Event]:
    """The same events, with price changes at random positions, also after the end."""
    changes = [e for e in log if isinstance(e, PriceChanged)]
    late = [e for e in log if not isinstance(e, PriceChanged)]
    for change in changes:
        first = next(
            n
            for n, e in enumerate(late)
            if isinstance(e, NodesReady) and e.attempt == change.attempt
        )
        same = [n for n, e in enumerate(late) if isinstance(e, PriceChanged)]
        late.insert(draw.randint(max([first, *same]) + 1, len(late)), change)
    return late


@pytest.mark.timeout(60 + HISTORIES // 50)
def test_bill_equals_the_sum_over_all_milliseconds() -> None:
    for seed in range(HISTORIES):
        draw = random.Random(seed)
        life = random_history(draw)
        now = at(life.now_s)

        try:
            _check(life, compute_bill(life.log, {}, now))
            late = _with_late_prices(draw, life.log)
            result = fold("job-1", late).account
            assert result.paid_micros_by(now) == compute_bill(late, {}, now).paid_micros
            assert result.node_ms_by(now) == compute_bill(late, {}, now).ms.total
            assert compute_bill(late, {}, now) == compute_bill(life.log, {}, now)
        except AssertionError as error:
            error.add_note(f"history {seed}")
            raise


@pytest.mark.timeout(60 + HISTORIES // 500)
def test_late_prices_leave_running_cost_and_bill_equal() -> None:
    for seed in range(HISTORIES // 10):
        draw = random.Random(seed)
        log: list[Event] = list(random_history(draw).log)
        skewed = [_skewed(draw, e) if isinstance(e, NodesReady) else e for e in log]
        now = DAWN + timedelta(days=2)
        account, billed = fold("job-1", skewed).account, compute_bill(skewed, {}, now)

        assert account.paid_micros_by(now) == billed.paid_micros, seed
        assert account.node_ms_by(now) == billed.ms.total, seed
        assert all(span.end_ms > span.begin_ms for a in billed.attempts for span in a.spans), seed
        ends = [(a.begin_ms, a.end_ms) for a in billed.attempts]
        assert all(one[1] <= other[0] for one, other in pairwise(ends)), seed


def _skewed(draw: random.Random, event: NodesReady) -> NodesReady:
    return replace(event, at=event.at + timedelta(milliseconds=draw.randint(-40, 40)))


def test_price_change_is_refused_once_its_meter_is_settled() -> None:
    log: list[Event] = [submitted(), launched()]
    for attempt in range(1, RETAINED_METERS + 3):
        log += [ready(10 * attempt, attempt=attempt), lost(10 * attempt + 5, attempt=attempt)]
    job = fold("job-1", log)
    change = PriceChanged(at=at(32), attempt=3, micros_per_hour=9, on_demand_micros_per_hour=9)

    result = advance(job, change)

    assert job.account.paid_micros == 5_000 * (RETAINED_METERS + 2)
    assert result.account.paid_micros == compute_bill([*log, change], {}, at(999)).paid_micros
    assert result.account.paid_micros < job.account.paid_micros
    for attempt in (1, RETAINED_METERS + 3):
        with pytest.raises(IllegalTransition, match="cannot change: it has no open meter"):
            advance(job, replace(change, attempt=attempt))
