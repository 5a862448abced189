"""The service, put together: home folder, database, launchers, reconciler, server.

The reconciler has a thread and an event loop of its own, so that a slow launcher never holds up an answer.
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
from holdfast.host import file_descriptors
from holdfast.host.home_lock import serving_over
from holdfast.ingest.group_commit import SWITCH_S
from holdfast.server.composition import (
    Application,
    as_it_is,
    bracketed,
    build,
    for_reach,
)
from holdfast.server.connections import BoundedProtocol, Listener
from holdfast.settings import Settings, SimulatedMarketSettings

log = logging.getLogger(__name__)
GRACE_S = 3
"""How long open streams may hold up the end of the service."""


def serve(
    settings: Settings,
    market: SimulatedMarketSettings,
    host: str,
    port: int,
    prepare: Callable[[Settings, str], Settings] = as_it_is,
    *,
    opened: Callable[[Settings, SimulatedMarketSettings, str], Application] = build,
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
        freeze_startup_objects()
        with graceful_shutdown():
            house.heart.start()
            try:
                server.run(sockets=[listener])
            finally:
                house.heart.stop()
                log.info("Holdfast has ended; jobs go on")


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """Have SIGTERM end the program as an interrupt does, by an exception: by itself it would leave no step its end."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Server(uvicorn.Server):
    """A server that tells its streams when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, stopping: Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(file_descriptors.report)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)


def _address(host: str, port: int) -> str:
    """Where this machine reaches the service; a wildcard is no place to go to."""
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{bracketed(name)}:{port}"


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
