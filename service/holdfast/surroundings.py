"""What a service finds around itself: time, prices, launchers, and where workers leave their reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.adapters.inbox import SpoolInbox
from holdfast.adapters.prices import open_catalog
from holdfast.clock import SystemClock
from holdfast.confinement import Confinement, confinement_of
from holdfast.domain.limits import MICROS_PER_USD
from holdfast.domain.spec import Engine
from holdfast.domain.weather import Climate
from holdfast.launchers import open_launchers
from holdfast.ports import Clock, Launcher, PriceCatalog, ReportInbox
from holdfast.settings import Market, Settings
from holdfast.store.launches import LaunchBook
from holdfast.store.tokens import Tokens
from holdfast.uploads import Uploads


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The world of a service."""

    clock: Clock
    prices: PriceCatalog
    launchers: Mapping[Engine, Launcher]
    inbox: ReportInbox
    confinement: Confinement = field(default_factory=Confinement)
    """What jobs of users may use of this machine; nothing of a demonstration runs anywhere."""
    uploads: Uploads | None = None
    """Code that clients uploaded; None: it takes none, as a demonstration does."""
    demo_seed: int | None = None
    """What all of it was made from; None: it is real."""


def outside(
    settings: Settings, market: Market, book: LaunchBook, tokens: Tokens, address: str
) -> Surroundings:
    """The world as it is, for a service that listens at `address`."""
    clock = SystemClock()
    prices = open_catalog(settings.price_folders, clock, asks_aws=settings.prices_live)
    launchers = open_launchers(
        settings, climate=_climate(market), book=book, tokens=tokens, prices=prices, address=address
    )
    # Behind ssh there is no such folder here; then reports come by way of the checkpoint store.
    shared = [settings.slurm_folder] if settings.slurm_folder and not settings.slurm_host else []
    inbox = SpoolInbox(settings.home, *shared)
    return Surroundings(
        clock=clock,
        prices=prices,
        launchers=launchers,
        inbox=inbox,
        confinement=confinement_of(settings),
        uploads=Uploads(
            settings.code_folder,
            clock,
            most_bytes=settings.code_mb * 2**20,
            most_total_bytes=settings.code_total_mb * 2**20,
            days=settings.code_days,
        ),
    )


def _climate(market: Market) -> Climate:
    return Climate(
        seed=market.seed,
        provision_s=market.provision_s,
        denial_rate=market.denial_rate,
        mtbf_s=market.mtbf_s,
        notice_s=market.notice_s,
        spot_micros=round(market.spot_usd_per_hour * MICROS_PER_USD),
        on_demand_micros=round(market.on_demand_usd_per_hour * MICROS_PER_USD),
    )
