"""The market of a job: prices of all nodes, beliefs, and measured starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from holdfast.domain.events import Event, LaunchRequested
from holdfast.domain.events.planning import CapacityType, LaunchPlacement, MarketState, PlaceState
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.planning.place_history import BELIEF_PERIOD, belief_of
from holdfast.domain.pricing.quotes import PricePoint, PriceQuery, Quote, QuoteSource
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.local import LocalLauncher
from holdfast.launchers.simulated import SimulatedCloud
from holdfast.market.markets import BELIEF_TTL, Markets
from holdfast.ports import CapacityHint, Launcher, PriceList, RecordedPlaces, SellsNodes
from holdfast.store.journal import Journal
from holdfast.store.market.observations import PlaceObservations
from sqlalchemy import Engine as SqlEngine
from sqlalchemy import event as sql_event
from support.events import DAWN, at, denied, finished, launched, lost, ready, submitted, training

USD = 1_000_000
AS_OF = DAWN - timedelta(days=2)


@dataclass
class ListedPrices:
    """A price catalog with a few prices."""

    quotes: Sequence[Quote] = ()
    asked: list[PriceQuery] = field(default_factory=list)

    def quote(self, wanted: PriceQuery, at: datetime) -> Quote:
        return quote("", "", None, 9 * USD, 30 * USD, is_estimate=True)

    def find(self, wanted: PriceQuery, at: datetime) -> PriceList:
        self.asked.append(wanted)
        found = tuple(
            quote
            for quote in self.quotes
            if wanted.matches_location(quote) and wanted.matches_node(quote)
        )
        return PriceList(quotes=found, refused=())

    def history(self, *_: Any) -> Sequence[PricePoint]:
        return ()


def quote(
    cloud: str,
    region: str,
    zone: str | None,
    spot: int | None,
    on_demand: int | None,
    as_of: datetime = AS_OF,
    **more: Any,
) -> Quote:
    return Quote(
        cloud=cloud,
        region=region,
        zone=zone,
        instance_type=None,
        accelerator="A100",
        count=8,
        spot_micros_per_hour=spot,
        on_demand_micros_per_hour=on_demand,
        as_of=as_of,
        source="a list",
        tier=QuoteSource.CATALOG,
        **more,
    )


TWO_ZONES = (
    quote("aws", "us-east-1", "us-east-1a", 10 * USD, 32 * USD),
    quote("aws", "us-east-1", "us-east-1b", 8 * USD, 32 * USD),
    quote("gcp", "us-central1", "us-central1-a", 9 * USD, 29 * USD),
    quote("aws", "us-west-2", "us-west-2a", None, 33 * USD),
)


def job(*places: str, nodes: int = 2, **resources: Any) -> JobSpec:
    entries = [{"infra": place} for place in places]
    options: dict[str, Any] = {"accelerators": "A100:8", "use_spot": True, **resources}
    where = {"any_of": entries} if len(entries) > 1 else {"infra": places[0]} if places else {}
    return JobSpec.from_stored(
        {"name": "a", "run": "true", "num_nodes": nodes, "resources": {**options, **where}}
    )


@pytest.fixture
def open_markets(engine: SqlEngine) -> Callable[..., Markets]:
    def open_one(*quotes: Quote, **launchers: Launcher) -> Markets:
        return Markets(
            engine, ListedPrices(quotes), {Engine(name): each for name, each in launchers.items()}
        )

    return open_one


OpenMarkets = Callable[..., Markets]


def prices(state: MarketState) -> dict[str, tuple[float | None, float | None, bool]]:
    return {
        place.name: (
            place.spot_usd_per_hour,
            place.on_demand_usd_per_hour,
            place.is_price_estimate,
        )
        for place in state.places
    }


def test_prices_are_the_lowest_of_all_nodes(open_markets: OpenMarkets) -> None:
    wanted = job("aws/us-east-1", "aws/us-east-1/us-east-1a", "gcp")

    state = open_markets(*TWO_ZONES).state(wanted, DAWN)

    assert prices(state) == {
        "aws/us-east-1": (16, 64, False),
        "aws/us-east-1/us-east-1a": (20, 64, False),
        "gcp": (18, 58, False),
    }
    assert [place.region for place in state.places] == ["aws/us-east-1", "aws/us-east-1", "gcp"]
    assert {place.priced_at for place in state.places} == {AS_OF}


def test_jobs_are_planned_every_ten_minutes_or_as_set(engine: SqlEngine) -> None:
    catalog = ListedPrices(TWO_ZONES)

    assert Markets(engine, catalog, {}).state(job(), DAWN).tick_s == 600
    assert Markets(engine, catalog, {}, tick_s=30).state(job(), DAWN).tick_s == 30


def test_anywhere_costs_what_the_cheapest_place_does(open_markets: OpenMarkets) -> None:
    assert prices(open_markets(*TWO_ZONES).state(job(), DAWN)) == {"any": (16, 58, False)}


@dataclass
class ListedHints:
    """Hints of a provider about a few places."""

    found: dict[str, CapacityHint]
    asked: list[tuple[str, str | None, int]] = field(default_factory=list)

    def score(
        self, place: str, instance_type: str | None, nodes: int, at: datetime
    ) -> CapacityHint | None:
        self.asked.append((place, instance_type, nodes))
        return self.found.get(place)


def test_hints_are_shown_with_source_and_time(engine: SqlEngine) -> None:
    hint = CapacityHint(
        probability=0.3, source="a provider", as_of=AS_OF, uptime_s=600, preemption_rate=0.2
    )
    hints = ListedHints({"aws/us-east-1": hint})
    quotes = [replace(each, instance_type="p4d.24xlarge") for each in TWO_ZONES]
    wanted = job("aws/us-east-1", "gcp", "aws/us-west-2")

    state = Markets(engine, ListedPrices(quotes), {}, hints).state(wanted, DAWN)

    assert [(place.hint, place.hint_source, place.hint_at) for place in state.places] == [
        (0.3, "a provider", AS_OF),
        (None, "", None),
        (None, "", None),
    ]
    assert [(place.hint_uptime_s, place.hint_preemption_rate) for place in state.places] == [
        (600, 0.2),
        (None, None),
        (None, None),
    ]
    assert hints.asked == [
        ("aws/us-east-1", "p4d.24xlarge", 2),
        ("gcp", "p4d.24xlarge", 2),
    ], "places without spot nodes need none"


def test_hint_is_of_the_type_that_the_file_names(engine: SqlEngine) -> None:
    hints = ListedHints({})
    wanted = job("aws/us-east-1", accelerators=None, instance_type="p3.2xlarge", nodes=1)

    Markets(engine, ListedPrices(), {}, hints).state(wanted, DAWN)

    assert hints.asked == [("aws/us-east-1", "p3.2xlarge", 1)]


def test_place_without_spot_has_no_spot_price(open_markets: OpenMarkets) -> None:
    state = open_markets(*TWO_ZONES).state(job("aws/us-west-2"), DAWN)

    assert prices(state) == {"aws/us-west-2": (None, 66, False)}


def test_zone_whose_price_has_only_an_id_has_the_highest(open_markets: OpenMarkets) -> None:
    by_id = [replace(each, zone=f"use1-az{n}") for n, each in enumerate(TWO_ZONES[:2])]

    state = open_markets(*by_id).state(job(ZONE), DAWN)

    assert prices(state) == {ZONE: (20, 64, True)}
    by_name = open_markets(TWO_ZONES[1]).state(job(ZONE), DAWN)
    assert prices(by_name) == {ZONE: (None, None, False)}, "not sold in this zone"


def test_place_where_nobody_sells_has_no_price(open_markets: OpenMarkets) -> None:
    state = open_markets(*TWO_ZONES).state(job("aws/eu-west-1"), DAWN)

    assert prices(state) == {"aws/eu-west-1": (None, None, False)}


def test_price_without_a_source_is_an_estimate(open_markets: OpenMarkets) -> None:
    assert prices(open_markets().state(job("aws/us-east-1"), DAWN)) == {
        "aws/us-east-1": (18, 60, True)
    }


def test_file_without_spot_has_no_spot_price(open_markets: OpenMarkets) -> None:
    state = open_markets(*TWO_ZONES).state(job("gcp", use_spot=False), DAWN)

    assert prices(state) == {"gcp": (None, 58, False)}


def test_prices_are_kept_for_a_while(engine: SqlEngine) -> None:
    catalog = ListedPrices(TWO_ZONES)
    markets = Markets(engine, catalog, {})
    for seconds in (0, 10, 200):
        markets.state(job("gcp"), at(seconds))
    asked = len(catalog.asked)

    markets.state(job("gcp"), at(400))

    assert (asked, len(catalog.asked)) == (2, 4)


ZONE = "aws/us-east-1/us-east-1a"


def record(journal: Journal, *events: Event, job_id: str = "job-1") -> None:
    first = submitted(infra="")
    spec = {**first.spec, "resources": {"accelerators": "A100:8"}}
    added = journal.submit(job_id, replace(first, spec=spec))
    for event in events:
        added = journal.append(added, [event])


def spot(seconds: float, zone: str = ZONE, attempt: int = 1) -> Event:
    return replace(ready(seconds, zone=zone, attempt=attempt), is_spot=True)


def test_beliefs_come_from_jobs_of_all(
    open_markets: OpenMarkets, journal: Journal, engine: SqlEngine
) -> None:
    record(journal, launched(1), denied(10, zone="aws/us-east-1"), spot(3000), lost(9000))
    now = at(12_000)

    state = open_markets(*TWO_ZONES).state(job("aws/us-east-1", "gcp", ZONE), now)
    region, other, zone = state.places

    rows = PlaceObservations(engine).of_place("aws/us-east-1", "a100:8", now - BELIEF_PERIOD)
    belief = belief_of(rows, now)
    assert (region.is_available, region.seen_at, region.observations) == (False, at(9000), 3)
    assert (region.age_s, region.loss, region.returns) == (
        belief.age_s,
        belief.loss,
        belief.returns,
    )
    assert (other.is_available, other.seen_at, other.observations) == (None, None, 0)
    assert (zone.is_available, zone.observations) == (False, 2)
    assert (state.tick_s, state.sees_all, state.at) == (600, False, now)


def test_other_hardware_says_nothing(open_markets: OpenMarkets, journal: Journal) -> None:
    record(journal, launched(1), denied(10, zone="aws/us-east-1"))

    state = open_markets().state(job("aws/us-east-1", accelerators="H100:8"), at(20))

    assert state.places[0].observations == 0


def test_beliefs_are_kept_until_something_is_seen(
    open_markets: OpenMarkets, journal: Journal, engine: SqlEngine
) -> None:
    record(journal, launched(1), spot(10))
    markets, statements = open_markets(), list[str]()
    markets.state(job("aws"), at(20))
    sql_event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    again = markets.state(job("aws"), at(20) + BELIEF_TTL / 2)
    selects = [text for text in statements if "SELECT" in text]
    journal.append(journal.read("job-1"), [lost(30)])
    after = markets.state(job("aws"), at(40))

    assert again.places[0].is_available is True
    assert len(selects) == 1
    assert after.places[0].is_available is False


@pytest.mark.parametrize(
    ("infra", "changeover_s", "wait_s"),
    [("local", 10, 0), ("slurm/hpc/batch", 60, 0), ("aws", 360, 1200)],
)
def test_usual_times_without_launches(
    open_markets: OpenMarkets, infra: str, changeover_s: float, wait_s: float
) -> None:
    state = open_markets().state(job(infra), DAWN)

    assert (state.changeover_s, state.changeover_samples) == (changeover_s, 0)
    assert state.on_demand_wait_s == wait_s


def test_starts_are_measured(open_markets: OpenMarkets, journal: Journal) -> None:
    for number in range(50):
        took = 60 if number else 600
        record(
            journal,
            launched(0),
            spot(20),
            training(took),
            finished(900),
            job_id=f"job-{number}",
        )

    state = open_markets().state(job("aws"), at(1000))
    later = open_markets().state(job("aws"), at(1000) + timedelta(days=91))

    assert (state.changeover_s, state.changeover_samples) == (60, 50)
    assert (later.changeover_s, later.changeover_samples) == (360, 0)


def test_waiting_for_nodes_is_no_changeover(open_markets: OpenMarkets, journal: Journal) -> None:
    record(journal, launched(0), denied(5, zone="aws"), spot(20_000), training(20_060))

    assert open_markets().state(job("aws"), at(30_000)).changeover_samples == 0


def test_wait_for_on_demand_nodes_is_measured(open_markets: OpenMarkets, journal: Journal) -> None:
    placement = LaunchPlacement(capacity=CapacityType.ON_DEMAND, places=("aws",))
    for number in range(40):
        asked = LaunchRequested(at=at(0), launch=1, placement=placement)
        bought = replace(ready(90, zone="aws/us-east-1"), is_spot=False)
        record(journal, asked, bought, finished(900), job_id=f"job-{number}")

    assert open_markets().state(job("aws"), at(1000)).on_demand_wait_s == 90


def test_local_market_has_the_prices_of_its_zones(open_markets: OpenMarkets, tmp_path: Any) -> None:
    climate = MarketParameters(spot_micros=2 * USD, on_demand_micros=5 * USD)
    launcher = LocalLauncher(tmp_path, climate)
    assert isinstance(launcher, SellsNodes)

    state = open_markets(local=launcher).state(job("local"), DAWN)

    zones = [f"local/local-{letter}" for letter in "abc"]
    assert prices(state) == dict.fromkeys(zones, (4, 10, False))
    assert {place.region for place in state.places} == {"local"}
    assert issubclass(SimulatedCloud, SellsNodes)


class Recorded:
    """A launcher with a recorded market of one node's prices."""

    def recorded_market(self, at: datetime, *, nodes: int = 1) -> RecordedPlaces | None:
        if nodes > 4:
            return None
        place = PlaceState(
            name="local/a",
            region="a",
            spot_usd_per_hour=1.5,
            on_demand_usd_per_hour=4,
            is_available=True,
            loss=2.0,
        )
        return RecordedPlaces(tick_s=300, places=(place,))


def test_recorded_market_is_seen_as_it_is(open_markets: OpenMarkets) -> None:
    recorded: Any = Recorded()
    markets = open_markets(*TWO_ZONES, local=recorded)

    state = markets.state(job("local", nodes=2), DAWN)

    assert (state.tick_s, state.sees_all) == (300, True)
    assert prices(state) == {"local/a": (3, 8, False)}
    assert state.places[0].loss == 2.0
    assert not markets.state(job("local", nodes=8), DAWN).sees_all
