"""Capacity losses of many jobs, by any grouping.

Each is counted once, and user errors apart from preemptions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from holdfast.domain.events import Cause, Event, Outcome
from holdfast.store.billing.bills import BillRollups
from holdfast.store.billing.preemption_costs import PreemptionCostQueries, PreemptionHistory
from holdfast.store.billing.preemptions import (
    LossBy,
    LossRequest,
    PreemptionQueries,
    PreemptionReport,
)
from holdfast.store.billing.statistics import collect_statistics
from holdfast.store.journal import Journal
from sqlalchemy import Engine
from support.events import (
    DAWN,
    SPOT,
    at,
    finished,
    launched,
    lost,
    node_lost,
    node_replaced,
    ready,
    submitted,
)
from support.fakes import FixedClock

HOUR_S = 3600
NOW = at(60 * HOUR_S)
CAUSES = [Cause.PREEMPTED, Cause.NODE_FAILED, Cause.USER_ERROR, Cause.PREEMPTED]


@pytest.fixture
def preemptions(engine: Engine, clock: FixedClock, journal: Journal) -> PreemptionQueries:
    """Four jobs with four losses each, two hours apart; the last job is live."""
    for number in range(4):
        job = journal.submit(f"job-{number}", replace(submitted(), project=f"p{number % 2}"))
        log: list[Event] = [launched(1)]
        for attempt, cause in enumerate(CAUSES, 1):
            begin = attempt * 2 * HOUR_S + 600 * number
            nodes = ready(begin, attempt=attempt, zone="ab"[attempt % 2])
            log.append(replace(nodes, nodes=2, instance_type=f"type-{number % 2}"))
            log.append(lost(begin + HOUR_S, attempt=attempt, cause=cause))
        log += [finished(20 * HOUR_S, Outcome.FAILED)] * (number < 3)
        journal.append(job, log)
    return PreemptionQueries(BillRollups(engine))


def loss_report(preemptions: PreemptionQueries, by: LossBy, **more: object) -> PreemptionReport:
    return preemptions.report(LossRequest(by=by, **more), NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", [*LossBy])
def test_every_grouping_counts_each_loss_once(preemptions: PreemptionQueries, by: LossBy) -> None:
    reported = loss_report(preemptions, by)

    causes = sum((losses.causes for losses in reported.totals), Counter())
    assert causes == reported.total.causes == {"preempted": 8, "node_failed": 4, "user_error": 4}
    assert (reported.total.preempted, reported.total.counted) == (12, 12)
    assert reported.total.node_hours == pytest.approx(4 * 4 * 2)
    if by is not LossBy.CAUSE:
        assert sum(losses.node_ms for losses in reported.totals) == reported.total.node_ms
        assert sum(losses.counted for losses in reported.totals) == 12


def test_losses_have_their_zone_and_hour(preemptions: PreemptionQueries) -> None:
    zones = {losses.zone: losses for losses in loss_report(preemptions, LossBy.ZONE).totals}
    hours = {losses.hour: losses for losses in loss_report(preemptions, LossBy.HOUR).totals}
    causes = {losses.cause: losses for losses in loss_report(preemptions, LossBy.CAUSE).totals}
    types = {
        losses.instance_type: losses.preempted
        for losses in loss_report(preemptions, LossBy.TYPE).totals
    }

    assert {zone: losses.causes for zone, losses in zones.items()} == {
        "a": {"node_failed": 4, "preempted": 4},
        "b": {"preempted": 4, "user_error": 4},
    }
    # The first ones begin at 14:00 and are lost an hour later; those of the fourth job half an
    # hour after that.
    assert hours[15].causes == {"preempted": 4}
    assert hours[14].preempted == 0
    assert hours[14].node_ms > 0
    assert (causes["user_error"].counted, causes["user_error"].preempted) == (4, 0)
    assert types == {"type-0": 6, "type-1": 6}


def test_filters_apply_to_losses_and_node_hours(
    preemptions: PreemptionQueries,
) -> None:
    one = loss_report(preemptions, LossBy.ZONE, projects=frozenset({"p1"})).total
    kind = loss_report(preemptions, LossBy.ZONE, instance_type="type-1").total
    zone = loss_report(preemptions, LossBy.HOUR, zone="a").total
    later = loss_report(preemptions, LossBy.HOUR, since=DAWN.date() + timedelta(days=1)).total
    whole = loss_report(preemptions, LossBy.HOUR, since=DAWN.date(), until=DAWN.date()).total

    for half in (one, kind):
        assert (half.causes.total(), half.node_hours) == (8, pytest.approx(16))
    assert (zone.causes.total(), zone.node_hours) == (8, pytest.approx(16))
    assert (later.causes.total(), later.node_ms) == (0, 0)
    assert (whole.causes.total(), whole.node_hours) == (16, pytest.approx(32))


def test_survival_counts_all_placements_but_drops_on_preemption(
    preemptions: PreemptionQueries,
) -> None:
    reported = loss_report(preemptions, LossBy.ZONE)

    [step] = reported.survival
    assert (step.minutes, step.at_risk, step.preempted, step.share) == (60, 16, 12, 0.25)
    assert reported.mean_minutes == 16 * 60 / 12


def test_mean_wait_uses_known_waits_only(preemptions: PreemptionQueries) -> None:
    total = loss_report(preemptions, LossBy.ZONE).total

    # Nodes follow all losses but the last of each job, an hour later; one in three losses is a
    # user error.
    assert (total.known_counts["wait_ms"], total.mean_s("wait_ms")) == (8, HOUR_S)
    assert total.mean_s("detect_ms") is None


def test_lost_node_is_counted_once_live_and_closed(
    engine: Engine, clock: FixedClock, journal: Journal
) -> None:
    nodes = replace(ready(HOUR_S, micros=2 * SPOT), nodes=2)
    changes = [node_lost(2 * HOUR_S), node_replaced(2 * HOUR_S + 60)]
    log = [launched(1), nodes, *changes, lost(4 * HOUR_S)]
    journal.append(journal.submit("job-1", submitted()), log)
    question = LossRequest(by=LossBy.ZONE)

    def answers() -> list[object]:
        rollups = BillRollups(engine)
        costs = PreemptionCostQueries(rollups)
        return [
            PreemptionQueries(rollups).report(question, NOW),
            costs.history(question, NOW, 9),
            costs.notices(question, NOW),
            costs.most_expensive(question, NOW, 9),
            collect_statistics(engine, rollups, NOW).losses,
        ]

    live = answers()
    journal.append(journal.read("job-1"), [finished(4 * HOUR_S)])
    report, history, *_, losses = closed = answers()

    assert closed == live
    assert isinstance(report, PreemptionReport)
    assert isinstance(history, PreemptionHistory)
    assert report.total.causes == losses == {"preempted": 2}
    assert report.total.node_ms == 1000 * (2 * 3 * HOUR_S - 60)
    assert [(step.minutes, step.at_risk) for step in report.survival] == [(60, 2), (120, 1)]
    assert [(one.at_ms, one.node, one.wait_ms) for one in history.newest] == [
        (1000 * at(4 * HOUR_S).timestamp(), None, None),
        (1000 * at(2 * HOUR_S).timestamp(), 1, 60_000),
    ]
    assert sum(day.taken for day in history.days) == 2
