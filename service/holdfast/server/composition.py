"""Assembles a service: clock, prices, launchers, stores, controller and background tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sqlalchemy import Engine as SqlEngine

from holdfast import addresses
from holdfast.api.routes.launchers import POLICY
from holdfast.background.audit_anchor import AuditAnchor
from holdfast.clock import SystemClock
from holdfast.code_upload.shared_uploads import SharedUploads
from holdfast.code_upload.upload_store import UploadLimits, Uploads
from holdfast.confinement import Confinement, confinement_of, names_in
from holdfast.controller.launcher_health import LauncherHealthMonitor
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.controller.thread import ControllerThread
from holdfast.domain.access.audit import Actor
from holdfast.domain.jobfile.spec import Engine
from holdfast.host import resources
from holdfast.host.allowed_folders import Folders
from holdfast.host.home_lock import folders_of
from holdfast.ingest.spool_reader import SpoolReader
from holdfast.launchers.skypilot.admission import AdmissionRequest
from holdfast.market.markets import Markets
from holdfast.market.planners import Planners
from holdfast.notifications import Dispatcher, open_dispatcher
from holdfast.ports import (
    CapacityHints,
    Clock,
    Launcher,
    OpenBucket,
    PriceCatalog,
    ReportInbox,
)
from holdfast.pricing import open_capacity_hints, open_catalog
from holdfast.pricing.catalog import open_resource_prices
from holdfast.rate_limit import RateLimiter, RateLimits, Streams
from holdfast.server.background_tasks import background_tasks
from holdfast.server.home_dir import make_home, own_secret, read_or_empty, write_once
from holdfast.server.launchers import (
    LauncherContext,
    groups_in,
    open_launchers,
    poll_intervals,
    refusals,
)
from holdfast.server.recorded_market import market_parameters
from holdfast.server.single_sign_on import open_single_sign_on
from holdfast.services import Services
from holdfast.settings import Settings, SimulatedMarketSettings, own_variable
from holdfast.single_sign_on.flows import SingleSignOn
from holdfast.storage import CheckpointBuckets, StorePolicy
from holdfast.store.audit_log import AuditLog
from holdfast.store.code import CodeTable
from holdfast.store.database import is_newer, open_database, revision_of, upgrade
from holdfast.store.identity.access_tokens import NewToken
from holdfast.store.identity.service_tokens import ServiceTokens, gate_secret
from holdfast.store.journal import Journal
from holdfast.store.launches import LaunchBook
from holdfast.store.leases import LeaseTable
from holdfast.store.machines.gpu_health import GpuHealth
from holdfast.store.market.projection import Projection
from holdfast.store.notifications.channels import Channels
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The external dependencies of a service."""

    clock: Clock
    prices: PriceCatalog
    launchers: Mapping[Engine, Launcher]
    inbox: ReportInbox
    hints: CapacityHints | None = None
    """None: providers are not asked for them, as in a demonstration."""
    confinement: Confinement = field(default_factory=Confinement)
    """Resources of this machine that users' jobs may use. A demonstration runs nothing."""
    uploads: Uploads | None = None
    """Code that clients uploaded; None: uploads are off, as in a demonstration."""
    demo_seed: int | None = None
    """Random seed of a demonstration; None: the service is real."""


def real_environment(
    settings: Settings,
    market: SimulatedMarketSettings,
    launch_book: LaunchBook,
    tokens: ServiceTokens,
    *,
    engine: SqlEngine,
    address: str,
) -> Environment:
    """The real dependencies of a service that listens at `address`."""
    clock = SystemClock()
    prices = open_catalog(settings.price_folders, clock, asks_aws=settings.prices_live)
    launchers = open_launchers(
        LauncherContext(
            settings=settings,
            market=market_parameters(market, settings.home, clock),
            launch_book=launch_book,
            tokens=tokens,
            prices=prices,
            groups_of=groups_in(Journal(engine, clock)),
            address=address,
            gpu_health=GpuHealth(engine, clock, settings.avoid_gpu_hours),
        )
    )
    # Behind ssh, the directory is not on this machine; reports then arrive through the checkpoint store.
    shared = [settings.slurm_folder] if settings.slurm_folder and not settings.slurm_host else []
    inbox = SpoolReader(settings.home, *shared)
    return Environment(
        clock=clock,
        prices=prices,
        launchers=launchers,
        inbox=inbox,
        hints=open_capacity_hints(settings.capacity_hints, clock, own_variable),
        confinement=confinement_of(settings, refusals(settings)),
        uploads=_uploads(settings, engine, clock),
    )


def _uploads(settings: Settings, engine: SqlEngine, clock: Clock) -> Uploads:
    limits = UploadLimits(
        most_bytes=settings.code_mb * 2**20,
        most_total_bytes=settings.code_total_mb * 2**20,
        days=settings.code_days,
    )
    if settings.shares_home:
        return Uploads(settings.code_folder, clock, limits)
    return SharedUploads(settings.code_folder, clock, CodeTable(engine), limits)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Application:
    """A service that is ready to be served."""

    services: Services
    controller: ControllerThread
    first_token: str | None
    """The access token if this start created it; None if there was one."""


def build(
    settings: Settings,
    market: SimulatedMarketSettings,
    address: str,
    around: Environment | None = None,
) -> Application:
    """Assemble a service at `address` from `settings`; without `around`, with real dependencies.

    Raises:
        StoreUnavailable: the home directory or the database cannot be used.
    """
    engine, secret = _database_and_secret(settings)
    tokens, launch_book = ServiceTokens(engine, secret), LaunchBook(engine, secret)
    worker_url = addresses.for_workers(settings, address)
    around = around or real_environment(
        settings, market, launch_book, tokens, engine=engine, address=address
    )
    clock, launchers, intervals = around.clock, around.launchers, poll_intervals(settings)
    records = _records(settings, engine, secret, around)
    reconciler = _reconciler(around, intervals, worker_url, tokens, records)
    health_monitor = LauncherHealthMonitor(launchers, clock)
    anchor = AuditAnchor(settings.audit_head_file, AuditLog(engine, clock))
    controller = ControllerThread(reconciler, intervals, health_monitor)
    services = Services(
        engine=engine,
        journal=records.journal,
        queries=Queries(engine),
        leases=records.leases,
        tokens=tokens,
        secrets=records.secrets,
        channels=Channels(engine, clock, secret),
        messenger=_dispatcher(settings, clock),
        launchers=launchers,
        launches=launch_book,
        prices=around.prices,
        reconciler_planners=records.planners,
        clock=clock,
        confinement=around.confinement,
        uploads=around.uploads,
        open_bucket=_open_bucket(settings, around, records.journal),
        runs_node_commands=settings.node_commands,
        billing_rules=settings.billing_rules,
        resource_prices=open_resource_prices(settings.resource_prices),
        max_sweep_jobs=settings.sweep_jobs,
        health=health_monitor.read,
        read_admission=AdmissionRequest.parse,
        worker_url=worker_url,
        nudge=controller.nudge,
        call_launcher=controller.call,
        is_reconciling=controller.is_alive,
        orphans=reconciler.orphan_cleaner.running,
        rate_limiter=_rate_limiter(settings),
        disk_error=partial(resources.disk_trouble, folders_of(settings)),
        single_sign_on=_single_sign_on(settings, around, engine, tokens, secret),
        trust_loopback=settings.trust_loopback,
        anchored_head=anchor.read,
        demo_seed=around.demo_seed,
    )
    controller.background_tasks = (*background_tasks(settings, services), anchor.run)
    return Application(services, controller, _first_token(settings, services))


def _single_sign_on(
    settings: Settings,
    around: Environment,
    engine: SqlEngine,
    tokens: ServiceTokens,
    secret: bytes,
) -> SingleSignOn | None:
    """Sign-in through the provider of the settings; None without one, as in a demonstration."""
    if around.demo_seed is not None:
        return None
    return open_single_sign_on(settings, engine, around.clock, tokens, secret)


def _open_bucket(settings: Settings, around: Environment, journal: Journal) -> OpenBucket | None:
    """How a job's checkpoint store is opened.

    None in a demonstration, whose store names may belong to others.
    """
    if around.demo_seed is not None:
        return None
    confinement = around.confinement
    rules = StorePolicy(
        service_endpoint=own_variable("AWS_ENDPOINT_URL_S3") or own_variable("AWS_ENDPOINT_URL"),
        endpoints=names_in(settings.store_endpoints),
        profiles=confinement.profiles,
    )

    def folders_of(job_id: str) -> Folders:
        asked = journal.submission(job_id)
        return confinement.folders.of_job(asked.project, is_confined=asked.confined)

    return CheckpointBuckets(around.clock, rules, folders_of).open


def _reconciler(
    around: Environment,
    intervals: PollIntervals,
    worker_url: str,
    tokens: ServiceTokens,
    records: _Records,
) -> Reconciler:
    """The reconciler over this database and the launchers of `around`."""
    return Reconciler(
        journal=records.journal,
        leases=records.leases,
        tokens=tokens,
        launchers=around.launchers,
        inbox=around.inbox,
        clock=around.clock,
        intervals=intervals,
        worker_url=worker_url,
        secrets=records.secrets,
        folders=around.confinement.folders,
        uploads=around.uploads,
        planners=records.planners,
    )


class _Records(NamedTuple):
    """What the reconciler reads and writes in the database."""

    journal: Journal
    leases: LeaseTable
    secrets: Secrets
    planners: Planners


def _records(settings: Settings, engine: SqlEngine, secret: bytes, around: Environment) -> _Records:
    return _Records(
        journal=_journal(engine, around.clock),
        leases=LeaseTable(engine),
        secrets=_secrets(engine, secret),
        planners=_planners(settings, engine, around),
    )


def _journal(engine: SqlEngine, clock: Clock) -> Journal:
    """The journal, with jobs and observations of places as this version reads their events."""
    journal = Journal(engine, clock)
    journal.rebuild_stale()
    Projection(engine).catch_up()
    return journal


def _planners(settings: Settings, engine: SqlEngine, around: Environment) -> Planners:
    markets = Markets(
        engine, around.prices, around.launchers, around.hints, tick_s=settings.plan_every_s
    )
    return Planners(markets)


def _secrets(engine: SqlEngine, secret: bytes) -> Secrets:
    """The stored secrets of jobs, without leftovers of ended jobs from a crash."""
    stored = Secrets(engine, secret)
    stored.forget_ended()
    return stored


def _database_and_secret(settings: Settings) -> tuple[SqlEngine, bytes]:
    """The database, upgraded to this version, and the secret of a service."""
    make_home(settings.home)
    engine = open_database(settings.sqlalchemy_url)
    upgrade(engine)
    at = revision_of(engine)
    if is_newer(at):
        log.warning("the database is at revision %s of a newer version; upgrade this service", at)
    return engine, own_secret(settings)


def unchanged_settings(settings: Settings, address: str) -> Settings:
    """Return the settings unchanged."""
    del address
    return settings


def settings_for_host(settings: Settings, host: str) -> Settings:
    """The settings for a service that listens on `host`.

    Beyond this machine, every request needs a token.
    """
    is_behind = settings.public_url and not addresses.is_here(settings.public_url)
    if is_behind and settings.trust_loopback is not False:
        log.warning(
            "workers reach this service at %s: without users (holdfast users add), callers behind an undetectable proxy act as the owner",
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
    """The secret URL at which SkyPilot's server requests admission of a launch.

    Anyone who knows it can answer.

    Raises:
        StoreUnavailable: the home directory, which contains the service's own secret, cannot be used.
    """
    make_home(settings.home)
    reached_at = addresses.for_skypilot(settings, address)
    return f"{reached_at}{POLICY}/{gate_secret(own_secret(settings))}"


def bracketed(host: str) -> str:
    """A host as it is written in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def _first_token(settings: Settings, services: Services) -> str | None:
    """Create the owner's token at the first start, or if the stored one is invalid.

    Write access to this directory includes the service's own secret. So if all tokens are lost, it suffices to
    delete that file.
    """
    access_tokens, now = services.access_tokens, services.clock.now()
    access_tokens.ensure_pepper()
    if not settings.shares_home:
        return _shared_first_token(settings, services)
    if (current := read_or_empty(settings.token_file)) and not access_tokens.is_empty():
        token = access_tokens.find(current)
        if token is None or token.user is not None or not token.refusal(now):
            return None
    text, _ = access_tokens.create(NewToken(name="first"), now, Actor(name="owner"))
    # The old file belongs to another database, or its token is invalid.
    settings.token_file.unlink(missing_ok=True)
    write_once(settings.token_file, text)
    return text


def _shared_first_token(settings: Settings, services: Services) -> str | None:
    """Write the owner's token, the same for all replicas, into the home of this one.

    The directory may be empty at each start, and several replicas may start at once.
    """
    now = services.clock.now()
    text, is_new = services.access_tokens.ensure_first(now, Actor(name="owner"))
    settings.token_file.unlink(missing_ok=True)
    if text:
        write_once(settings.token_file, text)
    return text if is_new else None


def _dispatcher(settings: Settings, clock: Clock) -> Dispatcher:
    smtp = settings.smtp_url.get_secret_value() if settings.smtp_url else None
    return open_dispatcher(
        clock, allowed=settings.notify_networks or "", smtp=smtp, takes_http=settings.notify_http
    )


def _rate_limiter(settings: Settings) -> RateLimiter:
    limits = RateLimits(
        ask=settings.requests_per_minute,
        spend=settings.submissions_per_minute,
        report=settings.reports_per_minute,
    )
    streams = Streams(settings.streams, settings.streams_per_user)
    return RateLimiter(time.monotonic, limits, streams)
