"""The market of a job: its places with prices and beliefs, and how long a start takes.

Blocking, as clouds may be asked for prices and hints. What is read is kept for a short time, because the market of each job is needed at each of its steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, TypeVar

from sqlalchemy import Engine as SqlEngine

from holdfast.domain.events.planning import CapacityType, MarketState, PlaceState
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.places import PlaceOption
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.planning.place_history import (
    BELIEF_PERIOD,
    TICK_S,
    PlaceBelief,
    belief_of,
)
from holdfast.domain.planning.places import hardware_of
from holdfast.domain.throughput.end_estimate import (
    USUAL_LOSS_S,
    InterruptionPrior,
    spot_loss_s,
)
from holdfast.market.option_prices import OptionPrices, option_prices
from holdfast.market.start_times import MEASURED_PERIOD, StartTimes, start_times
from holdfast.ports import CapacityHints, Launcher, PriceCatalog, RecordedMarket, SellsNodes
from holdfast.store.market.observations import PlaceObservations

T = TypeVar("T")

BELIEF_TTL: Final = timedelta(seconds=30)
"""Time for which beliefs about a place are kept unless something is observed anywhere.
A lower value computes them at each step; a higher value misses how long nothing was seen."""
LOSS_TTL: Final = timedelta(minutes=10)
"""The same of how often a place loses nodes, for the expected ends of jobs.
A lower value delays lists of jobs; a higher value estimates by an older market."""
LATE_START: Final = 2.0
"""Changeover, which nine of ten starts keep, as a multiple of the usual start.
A lower value expects late ends; a higher value early ones."""
PRICE_TTL: Final = timedelta(minutes=5)
"""Time for which prices of a place are kept. A lower value reads price lists at each step; a higher value misses changes."""
MAX_CACHED: Final = 1024
"""Answers that are kept. A lower value computes those of a large fleet again; a higher value uses memory, about 1 kB each."""


class Markets:
    """The markets of all jobs of a service. Thread-safe."""

    def __init__(
        self,
        engine: SqlEngine,
        prices: PriceCatalog,
        launchers: Mapping[Engine, Launcher],
        hints: CapacityHints | None = None,
        *,
        tick_s: float = TICK_S,
    ) -> None:
        """`hints` None: providers are not asked for them.

        `tick_s`: interval of decisions about jobs, where no recorded market has its own.
        """
        self._observations = PlaceObservations(engine)
        self._prices = prices
        self._launchers = launchers
        self._hints = hints
        self._tick_s = tick_s
        self._cache = _Cache()

    def state(self, spec: JobSpec, now: datetime) -> MarketState:
        """What is known of the places of a job at a moment."""
        starting = self._start_times(spec.engine, now)
        market = MarketState(
            at=now,
            places=(),
            tick_s=self._tick_s,
            changeover_s=starting.changeover_s,
            changeover_samples=starting.samples,
            on_demand_wait_s=starting.on_demand_wait_s,
        )
        launcher, nodes = self._launchers.get(spec.engine), spec.num_nodes
        if isinstance(launcher, RecordedMarket):
            recorded = launcher.recorded_market(now, nodes=nodes)
            if recorded is not None:
                places = tuple(_for_nodes(place, nodes) for place in recorded.places)
                return replace(market, places=places, tick_s=recorded.tick_s, sees_all=True)
        newest = self._observations.newest()
        found = dict[str, PlaceState]()
        for option in spec.places:
            for name, one_node in self._offers(launcher, option, now):
                if name in found:
                    continue
                state = self._place(name, option, one_node, nodes)
                belief = self._belief(name, hardware_of(option.option), newest, now)
                found[name] = self._hinted(
                    _believed(state, belief), one_node.instance_type, nodes, now
                )
        return replace(market, places=tuple(found.values()))

    def interruptions(
        self, engine: Engine, spot_place: tuple[str, str] | None, now: datetime
    ) -> InterruptionPrior:
        """What is known of interruptions of jobs at a place and its hardware; None: no spot nodes."""
        loss_s = USUAL_LOSS_S
        if spot_place:
            loss_s = self._cache.get(
                ("loss", *spot_place),
                now,
                LOSS_TTL,
                lambda: spot_loss_s(self._believe(*spot_place, now).loss),
            )
        downtime_s = self._start_times(engine, now).changeover_s / LATE_START
        return InterruptionPrior(loss_s=loss_s, downtime_s=downtime_s)

    def _offers(
        self, launcher: Launcher | None, option: PlaceOption, now: datetime
    ) -> Iterator[tuple[str, OptionPrices]]:
        """Yield the names of the places of an option, with prices of one node."""
        if isinstance(launcher, SellsNodes):
            for offer in launcher.node_offers(option.name):
                yield (
                    offer.place,
                    OptionPrices(
                        spot_micros=offer.spot_micros,
                        on_demand_micros=offer.on_demand_micros,
                        as_of=now,
                        is_estimate=offer.is_estimate,
                    ),
                )
            return
        nodes = sorted((word, repr(value)) for word, value in option.option.options.items())
        yield (
            option.name,
            self._cache.get(
                ("price", *nodes),
                now,
                PRICE_TTL,
                lambda: option_prices(option.option, self._prices, now),
            ),
        )

    @staticmethod
    def _place(name: str, option: PlaceOption, one_node: OptionPrices, nodes: int) -> PlaceState:
        sold = option.capacities
        spot = one_node.spot_micros if CapacityType.SPOT in sold else None
        on_demand = one_node.on_demand_micros if CapacityType.ON_DEMAND in sold else None
        return PlaceState(
            name=name,
            region=option.region,
            spot_usd_per_hour=_usd(spot, nodes),
            on_demand_usd_per_hour=_usd(on_demand, nodes),
            priced_at=one_node.as_of,
            is_price_estimate=one_node.is_estimate,
        )

    def _belief(self, place: str, hardware: str, newest: int, now: datetime) -> PlaceBelief:
        return self._cache.get(
            ("belief", place, hardware, newest),
            now,
            BELIEF_TTL,
            lambda: self._believe(place, hardware, now),
        )

    def _believe(self, place: str, hardware: str, now: datetime) -> PlaceBelief:
        return belief_of(self._observations.of_place(place, hardware, now - BELIEF_PERIOD), now)

    def _hinted(
        self, place: PlaceState, instance_type: str | None, nodes: int, now: datetime
    ) -> PlaceState:
        """A place with spot nodes as its provider rates it."""
        if self._hints is None or place.spot_usd_per_hour is None:
            return place
        hint = self._hints.score(place.name, instance_type, nodes, now)
        if hint is None:
            return place
        return replace(
            place,
            hint=hint.probability,
            hint_source=hint.source,
            hint_at=hint.as_of,
            hint_uptime_s=hint.uptime_s,
            hint_preemption_rate=hint.preemption_rate,
        )

    def _start_times(self, engine: Engine, now: datetime) -> StartTimes:
        return self._cache.get(
            ("start", engine),
            now,
            BELIEF_TTL,
            lambda: start_times(engine, self._observations.starts(engine, now - MEASURED_PERIOD)),
        )


@dataclass(slots=True)
class _Cache:
    """Answers that hold for a time, the latest used last."""

    answers: OrderedDict[Hashable, tuple[datetime, Any]] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def get(self, key: Hashable, now: datetime, ttl: timedelta, make: Callable[[], T]) -> T:
        """The answer made less than `ttl` ago, or a new one.

        Two threads may make it at once, which is harmless.
        """
        with self.lock:
            known = self.answers.get(key)
        if known is None or not timedelta() <= now - known[0] < ttl:
            known = now, make()
        with self.lock:
            self.answers[key] = known
            self.answers.move_to_end(key)
            while len(self.answers) > MAX_CACHED:
                self.answers.popitem(last=False)
        answer: T = known[1]
        return answer


def _for_nodes(place: PlaceState, nodes: int) -> PlaceState:
    """A place with the price of all nodes instead of that of one."""
    spot, on_demand = place.spot_usd_per_hour, place.on_demand_usd_per_hour
    return replace(
        place,
        spot_usd_per_hour=None if spot is None else spot * nodes,
        on_demand_usd_per_hour=None if on_demand is None else on_demand * nodes,
    )


def _believed(place: PlaceState, belief: PlaceBelief) -> PlaceState:
    return replace(
        place,
        is_available=belief.is_available,
        seen_at=belief.seen_at,
        age_s=belief.age_s,
        loss=belief.loss,
        returns=belief.returns,
        observations=belief.observations,
    )


def _usd(micros: int | None, nodes: int) -> float | None:
    return None if micros is None else micros * nodes / MICROS_PER_USD
