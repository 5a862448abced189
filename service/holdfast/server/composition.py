"""What a service finds around itself: time, prices, launchers, and where workers leave their reports."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqlalchemy import Engine as SqlEngine

from holdfast import addresses
from holdfast.api.rate_limit import RateLimiter, RateLimits, Streams
from holdfast.api.routes.launchers import POLICY
from holdfast.background.audit_anchor import AuditAnchor
from holdfast.clock import SystemClock
from holdfast.code_upload.upload_store import Uploads
from holdfast.confinement import Confinement, confinement_of
from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.controller.thread import ControllerThread
from holdfast.domain.access.audit import Actor
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import StoreUnavailable
from holdfast.host import disk_space
from holdfast.host.home_lock import folders_of
from holdfast.ingest.spool_reader import SpoolReader
from holdfast.notifications import Dispatcher, open_post
from holdfast.ports import Clock, Launcher, PriceCatalog, ReportInbox
from holdfast.pricing import open_catalog
from holdfast.server.background_tasks import background_tasks
from holdfast.server.launchers import open_launchers
from holdfast.services import Services
from holdfast.settings import Settings, SimulatedMarketSettings
from holdfast.store.audit_log import Audit
from holdfast.store.channels import Channels
from holdfast.store.database import is_newer, open_database, revision_of, upgrade
from holdfast.store.identity.access_tokens import NewToken
from holdfast.store.identity.service_tokens import Tokens, gate_secret
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets


@dataclass(frozen=True, kw_only=True)
class Environment:
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


def real_environment(
    settings: Settings,
    market: SimulatedMarketSettings,
    book: LaunchBook,
    tokens: Tokens,
    address: str,
) -> Environment:
    """The world as it is, for a service that listens at `address`."""
    clock = SystemClock()
    prices = open_catalog(settings.price_folders, clock, asks_aws=settings.prices_live)
    launchers = open_launchers(
        settings, climate=_climate(market), book=book, tokens=tokens, prices=prices, address=address
    )
    # Behind ssh there is no such folder here; then reports come by way of the checkpoint store.
    shared = [settings.slurm_folder] if settings.slurm_folder and not settings.slurm_host else []
    inbox = SpoolReader(settings.home, *shared)
    return Environment(
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


def _climate(market: SimulatedMarketSettings) -> MarketParameters:
    return MarketParameters(
        seed=market.seed,
        provision_s=market.provision_s,
        denial_rate=market.denial_rate,
        mtbf_s=market.mtbf_s,
        notice_s=market.notice_s,
        spot_micros=round(market.spot_usd_per_hour * MICROS_PER_USD),
        on_demand_micros=round(market.on_demand_usd_per_hour * MICROS_PER_USD),
    )


log = logging.getLogger(__name__)

EACH_LOOK_S = 0.5
"""Time that SkyPilot's server gets for each job it is asked about; reading its events costs 0.1 to 0.4 s of a core.
Smaller keeps a small server busy with answering alone once there are a hundred jobs; bigger relies more on its nudges."""


@dataclass(frozen=True)
class Application:
    """A service, ready to be served."""

    services: Services
    heart: ControllerThread
    first_token: str | None
    """The access token if this start made it; None when there was one before."""


def build(
    settings: Settings,
    market: SimulatedMarketSettings,
    address: str,
    around: Environment | None = None,
) -> Application:
    """The parts of a service at `address`, over the home folder and the database of `settings`, in the world `around`; None: the real one.

    Raises:
        StoreUnavailable: the home folder or the database cannot be used.
    """
    engine, secret = _own(settings)
    tokens, book = Tokens(engine, secret), LaunchBook(engine, secret)
    worker_url = addresses.for_workers(settings, address)
    around = around or real_environment(settings, market, book, tokens, address)
    clock, launchers, pace = around.clock, around.launchers, _pace(settings)
    journal, watches = Journal(engine, clock), LeaseTable(engine)
    secrets_of = _secrets(engine, secret)
    journal.renew()
    reconciler = _reconciler(around, pace, worker_url, journal, watches, tokens, secrets_of)
    pulse = LauncherHealthMonitor(launchers, clock)
    custodian = AuditAnchor(settings.audit_head_file, Audit(engine, clock))
    heart = ControllerThread(reconciler, pace, pulse)
    services = Services(
        engine=engine,
        journal=journal,
        reading=Queries(engine),
        watches=watches,
        tokens=tokens,
        secrets=secrets_of,
        channels=Channels(engine, clock, secret),
        messenger=_post(settings, clock),
        launchers=launchers,
        launches=book,
        prices=around.prices,
        clock=clock,
        confinement=around.confinement,
        uploads=around.uploads,
        billing_rules=settings.billing_rules,
        health=pulse.read,
        worker_url=worker_url,
        nudge=heart.nudge,
        ask=heart.call,
        is_reconciling=heart.is_alive,
        traffic=_traffic(settings),
        disk_trouble=partial(disk_space.trouble, folders_of(settings)),
        trust_loopback=settings.trust_loopback,
        kept_head=custodian.kept,
        demo_seed=around.demo_seed,
    )
    heart.beside = (*background_tasks(settings, services), custodian.keep_on)
    return Application(services, heart, _first_token(settings, services))


def _reconciler(  # noqa: PLR0917 - it has that many parts
    around: Environment,
    pace: PollIntervals,
    worker_url: str,
    journal: Journal,
    watches: LeaseTable,
    tokens: Tokens,
    secrets_of: Secrets,
) -> Reconciler:
    """The reconciler over the tables of this database and the launchers of `around`."""
    return Reconciler(
        journal=journal,
        watches=watches,
        tokens=tokens,
        launchers=around.launchers,
        inbox=around.inbox,
        clock=around.clock,
        pace=pace,
        worker_url=worker_url,
        safe=secrets_of,
        folders=around.confinement.folders,
        uploads=around.uploads,
    )


def _secrets(engine: SqlEngine, secret: bytes) -> Secrets:
    """The stored secrets of jobs, without those that a crash left behind when their job ended."""
    stored = Secrets(engine, secret)
    stored.forget_ended()
    return stored


def _own(settings: Settings) -> tuple[SqlEngine, bytes]:
    """The database, with the tables of this version, and the secret of a service: what is its own."""
    _make_home(settings.home)
    engine = open_database(settings.sqlalchemy_url)
    upgrade(engine)
    at = revision_of(engine)
    if is_newer(at):
        log.warning(
            "the database is at revision %s of a newer version; upgrade this service, too", at
        )
    return engine, _secret(settings.home)


def as_it_is(settings: Settings, address: str) -> Settings:
    """The settings, unchanged."""
    del address
    return settings


def for_reach(settings: Settings, host: str) -> Settings:
    """The settings as they hold for a service that listens on `host`: beyond this machine, every request needs a token."""
    is_behind = settings.public_url and not addresses.is_here(settings.public_url)
    if is_behind and settings.trust_loopback is not False:
        log.warning(
            "workers reach this service at %s: unless it has users (holdfast users add), a proxy that cannot be detected makes its callers the owner",
            settings.public_url,
        )
    if settings.trust_loopback is not None or addresses.is_here(f"http://{bracketed(host)}"):
        return settings
    log.warning(
        "listening on %s, beyond this machine: every request needs a token; add users with holdfast users add",
        host or "all addresses",
    )
    return settings.model_copy(update={"trust_loopback": False})


def gate_url(settings: Settings, address: str) -> str:
    """Where SkyPilot's server asks this service whether a launch may pass: a secret, as whoever knows it may answer.

    Raises:
        StoreUnavailable: the home folder, which has the service's own secret, cannot be used.
    """
    _make_home(settings.home)
    reached_at = addresses.for_skypilot(settings, address)
    return f"{reached_at}{POLICY}/{gate_secret(_secret(settings.home))}"


def bracketed(host: str) -> str:
    """A host as it is written in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def _make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreUnavailable(
            f"the folder {home} cannot be made ({error.strerror}); set HOLDFAST_HOME"
        ) from error
    if not os.access(home, os.W_OK):
        raise StoreUnavailable(f"the folder {home} cannot be written; set HOLDFAST_HOME")
    if (mode := home.stat().st_mode & 0o777) & 0o077:
        log.warning(
            "permissions %04o of %s are too open: other accounts of this machine may read what is there; chmod 700 %s",
            mode,
            home,
            home,
        )


def _secret(home: Path) -> bytes:
    """The service's own secret, made at its first start; replicas share it through the home folder."""
    file = home / "secret"
    _write_once(file, secrets.token_hex(32))
    return file.read_bytes()


def _first_token(settings: Settings, services: Services) -> str | None:
    """The owner's token, if it has to be made: at the first start, and where the one in the home folder lets in no more.

    Whoever can write this folder has the service's own secret; so whoever has lost all tokens need only remove that file.
    """
    keyring, now = services.keyring, services.clock.now()
    keyring.ensure_pepper()
    if (kept := _read(settings.token_file)) and not keyring.none_yet():
        token = keyring.find(kept)
        if token is None or token.user is not None or not token.refusal(now):
            return None
    text, _ = keyring.make(NewToken(name="first"), now, Actor(name="owner"))
    # Left over from another database, or no good any more.
    settings.token_file.unlink(missing_ok=True)
    _write_once(settings.token_file, text)
    return text


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def _write_once(file: Path, text: str) -> None:
    """Write a private file unless it is there; whole or not at all, whoever else tries the same."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _post(settings: Settings, clock: Clock) -> Dispatcher:
    smtp = settings.smtp_url.get_secret_value() if settings.smtp_url else None
    return open_post(
        clock, allowed=settings.notify_networks or "", smtp=smtp, takes_http=settings.notify_http
    )


def _pace(settings: Settings) -> PollIntervals:
    return PollIntervals(
        look_every_s=settings.look_every_s,
        by_engine={
            Engine.SKYPILOT: settings.skypilot_look_every_s,
            Engine.SLURM: settings.slurm_look_every_s,
        },
        each_s={Engine.SKYPILOT: EACH_LOOK_S},
        lease_s=settings.replicas_lease_s,
    )


def _traffic(settings: Settings) -> RateLimiter:
    limits = RateLimits(
        ask=settings.requests_per_minute,
        spend=settings.submissions_per_minute,
        report=settings.reports_per_minute,
    )
    streams = Streams(settings.streams, settings.streams_per_user)
    return RateLimiter(time.monotonic, limits, streams)
