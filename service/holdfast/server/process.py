"""Runs the service: home directory, database, launchers, controller, HTTP server.

The controller has its own thread and event loop, so a slow launcher never delays a response.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Event

import uvicorn

from holdfast.api.app import create_app
from holdfast.errors import AddressInUse
from holdfast.gc_tuning import freeze_startup_objects
from holdfast.host import resources
from holdfast.host.home_lock import serving_over
from holdfast.ingest.group_commit import SWITCH_S
from holdfast.server.composition import (
    Application,
    bracketed,
    build,
    settings_for_host,
    unchanged_settings,
)
from holdfast.server.connections import BoundedProtocol, Listener
from holdfast.settings import Settings, SimulatedMarketSettings

log = logging.getLogger(__name__)
GRACE_S = 3
"""Seconds for which open streams may delay the end of the service."""


def serve(
    settings: Settings,
    market: SimulatedMarketSettings,
    host: str,
    port: int,
    prepare: Callable[[Settings, str], Settings] = unchanged_settings,
    *,
    opened: Callable[[Settings, SimulatedMarketSettings, str], Application] = build,
) -> None:
    """Serve until a signal. Jobs continue without the service.

    `prepare` completes the settings once the service's own address is known; `opened` creates the service.

    Raises:
        AddressInUse: another process listens there.
        StoreUnavailable: the home directory or the database cannot be used.
    """
    os.umask(0o077)  # Files of the service are private to its account, wherever its home is.
    with closing(listen(host, port)) as listener, serving_over(settings):
        address = _address(host, listener.getsockname()[1])
        settings = prepare(settings, address)
        settings = settings_for_host(settings, host)
        application = opened(settings, market, address)
        if application.first_token:
            log.info("created the first access token in %s", settings.token_file)
        log.info("Holdfast listens on %s", address)
        config = uvicorn.Config(
            create_app(application.services),
            log_config=None,
            access_log=False,
            http=BoundedProtocol,
            timeout_graceful_shutdown=GRACE_S,
        )
        server = _Server(config, application.services.stopping)
        sys.setswitchinterval(SWITCH_S)
        freeze_startup_objects()
        with graceful_shutdown():
            application.controller.start()
            try:
                server.run(sockets=[listener])
            finally:
                application.controller.stop()
                log.info("Holdfast has stopped; jobs continue")


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """End the program on SIGTERM by an exception, as on an interrupt, so that cleanup runs."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Server(uvicorn.Server):
    """A server that notifies its streams before it stops."""

    def __init__(self, config: uvicorn.Config, stopping: Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(resources.report_loop_error)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)


def _address(host: str, port: int) -> str:
    """The address of the service on this machine.

    A wildcard host is replaced by the loopback address.
    """
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{bracketed(name)}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        AddressInUse: another process listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the protocol is named, asyncio sends the last part of a response without waiting for the
    # acknowledgement of the first, which costs a client with a kept connection 40 ms.
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
