"""The command that serves."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from holdfast.settings import DEFAULT_PORT, read_market, read_settings

Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
]
Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; other machines need a token.")
]


def serve(
    port: Port = DEFAULT_PORT,
    host: Host = "127.0.0.1",
    demo: Annotated[
        int | None,
        typer.Option(
            "--demo",
            metavar="SEED",
            help="Serve a demonstration instead: a month of made-up jobs, the same for the same number.",
        ),
    ] = None,
) -> None:
    """Run the service until it is interrupted; jobs go on without it."""
    from holdfast import serving  # noqa: PLC0415 - the bare client has no server

    log_to_stderr()
    if demo is None:
        serving.serve(read_settings(), read_market(), host, port)
        return
    from holdfast import showcase  # noqa: PLC0415 - nor this

    with showcase.home(read_settings()) as settings:
        serving.serve(settings, read_market(), host, port, opened=showcase.opened(demo))


def log_to_stderr() -> None:
    """What the service tells while it runs, one line each."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for chatty in ("alembic", "httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
