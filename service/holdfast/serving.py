"""The service, put together: home folder, database, launchers, reconciler, server.

The reconciler has a thread and an event loop of its own, so that a slow launcher never holds up an answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import uvicorn
from sqlalchemy import Engine as SqlEngine

from holdfast import addresses, descriptors, disk, loop
from holdfast.adapters.notify import Post, open_post
from holdfast.api.app import create_app
from holdfast.api.engine import POLICY
from holdfast.api.services import Services
from holdfast.beside import errands
from holdfast.connections import BoundedProtocol, Listener
from holdfast.custody import Custodian
from holdfast.domain.deeds import Doer
from holdfast.domain.spec import Engine
from holdfast.errors import AddressInUse, StoreUnavailable
from holdfast.garbage import leave_alone_what_stays
from holdfast.heart import Heart
from holdfast.intake import SWITCH_S
from holdfast.occupancy import folders_of, serving_over
from holdfast.ports import Clock
from holdfast.pulse import Pulse
from holdfast.settings import Market, Settings
from holdfast.store.audit import Audit
from holdfast.store.channels import Channels
from holdfast.store.database import is_newer, open_database, revision_of, upgrade
from holdfast.store.journal import Journal
from holdfast.store.keyring import Wish
from holdfast.store.launches import LaunchBook
from holdfast.store.reading import Reading
from holdfast.store.secrets import Secrets
from holdfast.store.tokens import Tokens, gate_secret
from holdfast.store.watches import Watches
from holdfast.surroundings import Surroundings, outside
from holdfast.traffic import Limits, Streams, Traffic

log = logging.getLogger(__name__)

EACH_LOOK_S = 0.5
"""Time that SkyPilot's server gets for each job it is asked about; reading its events costs 0.1 to 0.4 s of a core.
Smaller keeps a small server busy with answering alone once there are a hundred jobs; bigger relies more on its nudges."""
GRACE_S = 3
"""How long open streams may hold up the end of the service."""


@dataclass(frozen=True)
class House:
    """A service, ready to be served."""

    services: Services
    heart: Heart
    first_token: str | None
    """The access token if this start made it; None when there was one before."""


def build(
    settings: Settings, market: Market, address: str, around: Surroundings | None = None
) -> House:
    """The parts of a service at `address`, over the home folder and the database of `settings`, in the world `around`; None: the real one.

    Raises:
        StoreUnavailable: the home folder or the database cannot be used.
    """
    engine, secret = _own(settings)
    tokens, book = Tokens(engine, secret), LaunchBook(engine, secret)
    around = around or outside(settings, market, book, tokens, address)
    clock, launchers, pace = around.clock, around.launchers, _pace(settings)
    journal, watches, secrets_of = Journal(engine, clock), Watches(engine), Secrets(engine, secret)
    journal.renew()
    secrets_of.forget_ended()  # Of a crash between a job's end and this.
    reconciler = loop.Reconciler(
        journal=journal,
        watches=watches,
        tokens=tokens,
        launchers=launchers,
        inbox=around.inbox,
        clock=clock,
        pace=pace,
        worker_url=addresses.for_workers(settings, address),
        safe=secrets_of,
        folders=around.confinement.folders,
        uploads=around.uploads,
    )
    pulse = Pulse(launchers, clock)
    custodian = Custodian(settings.audit_head_file, Audit(engine, clock))
    heart = Heart(reconciler, pace, pulse)
    services = Services(
        engine=engine,
        journal=journal,
        reading=Reading(engine),
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
        worker_url=addresses.for_workers(settings, address),
        nudge=heart.nudge,
        ask=heart.ask,
        is_reconciling=heart.beats,
        traffic=_traffic(settings),
        disk_trouble=partial(disk.trouble, folders_of(settings)),
        trust_loopback=settings.trust_loopback,
        kept_head=custodian.kept,
        demo_seed=around.demo_seed,
    )
    heart.beside = (*errands(settings, services), custodian.keep_on)
    return House(services, heart, _first_token(settings, services))


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


def serve(
    settings: Settings,
    market: Market,
    host: str,
    port: int,
    prepare: Callable[[Settings, str], Settings] = as_it_is,
    *,
    opened: Callable[[Settings, Market, str], House] = build,
) -> None:
    """Serve until a signal asks for the end. Jobs go on without the service.

    `prepare` makes of the settings what holds once the service's own address is known; `opened` makes the service.

    Raises:
        AddressInUse: something else listens there.
        StoreUnavailable: the home folder or the database cannot be used.
    """
    os.umask(0o077)  # What the service writes is for its own account, wherever its home is.
    with closing(listen(host, port)) as listener, serving_over(settings):
        address = _address(host, listener.getsockname()[1])
        settings = prepare(settings, address)
        settings = for_reach(settings, host)
        house = opened(settings, market, address)
        if house.first_token:
            log.info("made the first access token; it is in %s", settings.token_file)
        log.info("Holdfast serves %s", address)
        config = uvicorn.Config(
            create_app(house.services),
            log_config=None,
            access_log=False,
            http=BoundedProtocol,
            timeout_graceful_shutdown=GRACE_S,
        )
        server = _Server(config, house.services.stopping)
        sys.setswitchinterval(SWITCH_S)
        leave_alone_what_stays()
        with ending_in_order():
            house.heart.start()
            try:
                server.run(sockets=[listener])
            finally:
                house.heart.stop()
                log.info("Holdfast has ended; jobs go on")


def for_reach(settings: Settings, host: str) -> Settings:
    """The settings as they hold for a service that listens on `host`: beyond this machine, every request needs a token."""
    is_behind = settings.public_url and not addresses.is_here(settings.public_url)
    if is_behind and settings.trust_loopback is not False:
        log.warning(
            "workers reach this service at %s: unless it has users (holdfast users add), a proxy that cannot be detected makes its callers the owner",
            settings.public_url,
        )
    if settings.trust_loopback is not None or addresses.is_here(f"http://{_bracketed(host)}"):
        return settings
    log.warning(
        "listening on %s, beyond this machine: every request needs a token; add users with holdfast users add",
        host or "all addresses",
    )
    return settings.model_copy(update={"trust_loopback": False})


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Have SIGTERM end the program as an interrupt does, by an exception: by itself it would leave no step its end."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def gate_url(settings: Settings, address: str) -> str:
    """Where SkyPilot's server asks this service whether a launch may pass: a secret, as whoever knows it may answer.

    Raises:
        StoreUnavailable: the home folder, which has the service's own secret, cannot be used.
    """
    _make_home(settings.home)
    reached_at = addresses.for_skypilot(settings, address)
    return f"{reached_at}{POLICY}/{gate_secret(_secret(settings.home))}"


class _Server(uvicorn.Server):
    """A server that tells its streams when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, stopping: Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(descriptors.report)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)


def _address(host: str, port: int) -> str:
    """Where this machine reaches the service; a wildcard is no place to go to."""
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{_bracketed(name)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for connections at an address.

    Raises:
        AddressInUse: something else listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only where the protocol is named does asyncio send an answer's last piece without waiting for the first to be
    # acknowledged, for which a client that keeps its connection takes 40 ms.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise AddressInUse(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another with --port"
        ) from error
    return listener


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
    keyring.season()
    if (kept := _read(settings.token_file)) and not keyring.none_yet():
        token = keyring.find(kept)
        if token is None or token.user is not None or not token.refusal(now):
            return None
    text, _ = keyring.make(Wish(name="first"), now, Doer(name="owner"))
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


def _post(settings: Settings, clock: Clock) -> Post:
    smtp = settings.smtp_url.get_secret_value() if settings.smtp_url else None
    return open_post(
        clock, allowed=settings.notify_networks or "", smtp=smtp, takes_http=settings.notify_http
    )


def _pace(settings: Settings) -> loop.Pace:
    return loop.Pace(
        look_every_s=settings.look_every_s,
        by_engine={
            Engine.SKYPILOT: settings.skypilot_look_every_s,
            Engine.SLURM: settings.slurm_look_every_s,
        },
        each_s={Engine.SKYPILOT: EACH_LOOK_S},
        lease_s=settings.replicas_lease_s,
    )


def _traffic(settings: Settings) -> Traffic:
    limits = Limits(
        ask=settings.requests_per_minute,
        spend=settings.submissions_per_minute,
        report=settings.reports_per_minute,
    )
    streams = Streams(settings.streams, settings.streams_per_user)
    return Traffic(time.monotonic, limits, streams)
