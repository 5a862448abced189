"""The policy `holdfast` in several places: which place it takes, moves, regions, and the safety net."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from holdfast.domain.planning.joint_costs import MAX_PLACES
from holdfast.domain.planning.policies import UniformProgress
from holdfast.domain.planning.replay import RecordedMarkets, Runs, Windows
from holdfast.domain.planning.replay import replay as replay_runs
from holdfast.domain.planning.situation import Choice, Held, Indices, Reason, Situation
from holdfast.domain.planning.survival import Survival
from support.spot_traces import (
    AWS_2023,
    DATA,
    HOUR_S,
    ON_DEMAND_USD,
    markets_of,
    recorded,
    terms_of,
    trace_of,
    windows_of,
)

GIB_USD = 0.02
"""Price of a gigabyte between two regions of AWS in America."""


def places(
    *texts: str, usd: tuple[float, ...] = (), regions: tuple[int, ...] = ()
) -> RecordedMarkets:
    """Places of one job, by their availability."""
    traces = [trace_of(text, name=str(number)) for number, text in enumerate(texts)]
    market = markets_of(*traces, together=True, regions=regions)
    prices = np.array(usd or [1.0] * len(texts))
    return replace(market, price=np.broadcast_to(prices[:, None], market.price.shape).copy())


def run(
    market: RecordedMarkets, *, start: int = 0, **terms: float
) -> tuple[Runs, list[tuple[Held, int, Reason]]]:
    """Run four hours of work within eight."""
    chosen = []

    def observe(_: int, __: Situation, choice: Choice, rows: Indices) -> None:
        if len(rows):
            held = Held(int(choice.holds[0]))
            chosen.append((held, int(choice.place[0]), Reason(int(choice.reason[0]))))

    window = windows_of(start, work_s=4 * HOUR_S, deadline_s=8 * HOUR_S, changeover_s=360)
    return replay_runs(Survival(), market, window, terms_of(**terms), [observe]), chosen


def test_cheapest_place_is_taken_and_kept() -> None:
    runs, chosen = run(places("1" * 60, "1" * 60, usd=(1.0, 0.8)))

    assert {(held, place) for held, place, _ in chosen} == {(Held.SPOT, 1)}
    assert runs.changeovers.tolist() == [1]


def test_place_that_loses_its_nodes_all_the_time_is_avoided() -> None:
    flapping, steady = "10" * 400, "1" * 800

    runs, chosen = run(places(flapping, steady), start=600)

    assert chosen[0][:2] == (Held.SPOT, 1)
    assert runs.preemptions.tolist() == [0]


def test_lost_nodes_are_replaced_in_another_place() -> None:
    runs, chosen = run(places("1" * 10 + "0" * 50, "1" * 60))

    assert chosen[0][1] == 0
    assert chosen[10][:2] == (Held.SPOT, 1)
    assert (runs.preemptions[0], runs.on_demand_s[0]) == (1, 0)


def test_job_moves_to_a_place_that_is_much_cheaper() -> None:
    _, chosen = run(places("1" * 60, "0" * 5 + "1" * 55, usd=(1.0, 0.2)))

    assert (Held.SPOT, 1, Reason.CHEAPER_PLACE) in chosen


def test_job_does_not_move_for_less_than_a_move_costs() -> None:
    market = places("1" * 60, "0" * 5 + "1" * 55, usd=(1.0, 0.7), regions=(0, 1))

    runs, _ = run(market, egress_usd=5.0)

    assert runs.changeovers.tolist() == [1]


@pytest.mark.parametrize("count", [2, 3, MAX_PLACES + 2])
def test_no_run_is_late_in_several_hostile_places(count: int) -> None:
    random = np.random.default_rng(count)
    late = []
    for _ in range(12):
        shares = random.choice([0.0, 0.1, 0.5, 0.9], count)
        texts = ["".join(random.choice(["1", "0"], 60, p=[p, 1 - p])) for p in shares]
        market = places(*texts, regions=tuple(range(count)))
        rows = 10
        deadline = (31 + random.integers(0, 8, rows)) * 600.0
        windows = windows_of(
            *([0] * rows),
            work_s=29.4 * 600,
            deadline_s=deadline,
            changeover_s=random.choice([72.0, 720.0]),
        )
        windows = replace(windows, deadline_s=windows.deadline_s + windows.changeover_s)
        runs = replay_runs(Survival(), market, windows, terms_of(egress_usd=1.0))
        late += (runs.finish_s > windows.deadline_s).tolist()

    assert not any(late)


def recorded_places(names: tuple[str, ...]) -> RecordedMarkets:
    """Zones with their recorded prices."""
    prices = json.loads((DATA / "aws_2023_02_15_prices.json").read_text())
    traces = [trace for trace in recorded(AWS_2023) if trace.name in names]
    regions = sorted({trace.region for trace in traces})
    numbers = tuple(regions.index(trace.region) for trace in traces)
    market = markets_of(*traces, together=True, regions=numbers)
    return replace(market, price=np.array([[prices[trace.name] for trace in traces]]))


def forty_hours(market: RecordedMarkets, starts: int) -> Windows:
    """Jobs of 40 h with a tenth more time, at even distances."""
    deadline_s = 44 * HOUR_S
    room = market.available.shape[2] - int(np.ceil(deadline_s / market.gap_s))
    each = np.linspace(0, room, starts).astype(int).tolist()
    return windows_of(*each, work_s=40 * HOUR_S, deadline_s=deadline_s, changeover_s=720.0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "limit"),
    [
        (("us-east-1a_v100_1", "us-east-2b_v100_1", "us-west-2a_v100_1"), 0.90),
        (("us-east-1f_v100_1", "us-east-2b_v100_1", "us-west-2b_v100_1"), 0.90),
        (("us-east-1a_v100_1", "us-east-1c_v100_1", "us-east-1f_v100_1"), 1.0),
        (("us-west-2a_v100_1", "us-west-2b_v100_1"), 1.0),
    ],
)
def test_recorded_zones_cost_less_than_with_uniform_progress(
    names: tuple[str, ...], limit: float
) -> None:
    market = recorded_places(names)
    windows = forty_hours(market, 20)
    terms = terms_of(on_demand_usd_per_hour=ON_DEMAND_USD, egress_usd=50 * GIB_USD)

    ours, uniform = (
        replay_runs(policy, market, windows, terms) for policy in (Survival(), UniformProgress())
    )

    assert (ours.finish_s <= windows.deadline_s).all()
    assert ours.cost_usd.mean() <= limit * uniform.cost_usd.mean()
