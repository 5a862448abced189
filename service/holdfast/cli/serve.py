"""The commands that run the service, with or without SkyPilot's API server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.cli import output
from holdfast.errors import BadRequest
from holdfast.log_context import log_to_stderr
from holdfast.settings import (
    DEFAULT_PORT,
    Settings,
    SimulatedMarketSettings,
    read_market,
    read_settings,
)

Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 selects a free one.")
]
Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; other machines need a token.")
]
MarketTrace = Annotated[
    Path | None,
    typer.Option(
        "--market-trace",
        metavar="DIR",
        help="Recorded availability that local nodes follow, instead of chance.",
    ),
]


def serve(
    port: Port = DEFAULT_PORT,
    host: Host = "127.0.0.1",
    demo: Annotated[
        int | None,
        typer.Option(
            "--demo",
            metavar="SEED",
            help="Serve a demonstration instead: a month of generated jobs, reproducible by its seed.",
        ),
    ] = None,
    market_trace: MarketTrace = None,
) -> None:
    """Run the service until it is interrupted; jobs continue without it."""
    from holdfast.server import process  # noqa: PLC0415 - the bare client has no server

    settings = read_settings()
    log_to_stderr(settings.log_format)
    if demo is None:
        process.serve(settings, _market(market_trace), host, port)
        return
    if market_trace:
        raise BadRequest("--market-trace: a demonstration has its own market; leave --demo out")
    from holdfast.demo import history  # noqa: PLC0415 - nor this

    with history.home(settings) as own_settings:
        process.serve(own_settings, read_market(), host, port, opened=history.with_history(demo))


def _market(trace: Path | None) -> SimulatedMarketSettings:
    """The settings of the local market, with a recording that an option names."""
    market = read_market()
    return market.model_copy(update={"market_trace": trace.absolute()}) if trace else market


def up(
    port: Port = DEFAULT_PORT,
    host: Host = "127.0.0.1",
    *,
    skypilot_port: Annotated[
        int | None,
        typer.Option(
            "--skypilot-port",
            min=1,
            max=65535,
            help="Port of SkyPilot's API server; default: that of the running one, else 46590.",
        ),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install SkyPilot if it is not installed.")
    ] = False,
    configure: Annotated[
        bool,
        typer.Option(
            "--configure",
            help="Print the setup of a remote SkyPilot server; write and start nothing.",
        ),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop SkyPilot's API server; its jobs continue.")
    ] = False,
    market_trace: MarketTrace = None,
) -> None:
    """Run the service with SkyPilot's API server, which is started if needed."""
    settings = read_settings()
    if stop:
        _stop(settings)
    elif configure:
        _configure(settings, port)
    else:
        from holdfast.server import process  # noqa: PLC0415 - the bare client has no server

        log_to_stderr(settings.log_format)
        prepare = _SkyPilotServer(skypilot_port, install)
        process.serve(settings, _market(market_trace), host, port, prepare)


@dataclass(frozen=True, slots=True)
class _SkyPilotServer:
    """Settings with a SkyPilot server: the one they name, or one that is started now."""

    port: int | None
    install: bool

    def __call__(self, settings: Settings, address: str) -> Settings:
        from holdfast import skypilot_server  # noqa: PLC0415 - the bare client has no server
        from holdfast.server import composition  # noqa: PLC0415 - the bare client has no server

        place = skypilot_server.ServerDir(settings.skypilot_folder)
        if settings.skypilot_url:
            output.echo(
                "HOLDFAST_SKYPILOT_URL already names SkyPilot's API server; holdfast up does not start another"
            )
            if (
                settings.skypilot_shares_files
            ):  # Then its HOME is among the directories that both can read.
                gate_url = composition.gate_url(settings, address)
                skypilot_server.configure_shared(
                    place, gate_url, output.echo, has_gate=settings.skypilot_has_gate
                )
            return settings
        if self.install:
            skypilot_server.install_if_missing(place, settings.skypilot_python, output.echo)
        # A server on this machine is reached without a proxy.
        reached_at = settings.skypilot_callback_url or address
        settings = settings.model_copy(update={"skypilot_callback_url": reached_at})
        url = skypilot_server.open_server(
            place,
            python=settings.skypilot_python,
            port=self.port,
            gate_url=composition.gate_url(settings, address),
            report=output.echo,
        )
        return settings.model_copy(update={"skypilot_url": url})


def _configure(settings: Settings, port: int) -> None:
    from holdfast import skypilot_server  # noqa: PLC0415 - the bare client has no server
    from holdfast.server import composition  # noqa: PLC0415 - the bare client has no server

    gate_url = composition.gate_url(settings, f"http://127.0.0.1:{port}")
    for line in _ELSEWHERE.format(module=skypilot_server.SOURCE, gate_url=gate_url).splitlines():
        output.echo(line)
    typer.echo(skypilot_server.required_lines(), nl=False)


_ELSEWHERE: Final = """\
A remote SkyPilot server needs three changes and a restart with TZ=UTC:
1. in the directory that its Python's sysconfig.get_path("purelib") returns, a copy of {module}
2. in ~/.sky/holdfast-gate of its HOME, readable only by the server, this line: {gate_url}
3. in ~/.sky/config.yaml of its HOME, the lines that follow
If 1. is impossible, 3. works alone with `admin_policy: ` and the line of 2. In that case the server asks this service about
every request of every user. While this service is down, it recovers and launches no jobs."""


def _stop(settings: Settings) -> None:
    from holdfast import skypilot_server  # noqa: PLC0415 - the bare client has no server

    settings.home.mkdir(
        parents=True, exist_ok=True, mode=0o700
    )  # The lock may be in a subdirectory.
    place = skypilot_server.ServerDir(settings.skypilot_folder)
    if skypilot_server.stop_server(place, output.echo):
        output.echo("SkyPilot's API server has been stopped; start it again with holdfast up")
    else:
        output.echo(f"no SkyPilot API server that was started in {place.home} is running")


def mcp(
    *,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Also offer tools that submit, pause, resume and cancel jobs; each asks for a confirmation.",
        ),
    ] = False,
    folder: Annotated[
        Path,
        typer.Option("--folder", metavar="DIR", help="Directory whose job files may be read."),
    ] = Path(),
) -> None:
    """Run a server that offers jobs as tools to a language model (MCP)."""
    from holdfast.mcp_server.server import serve_stdio  # noqa: PLC0415 - an optional package

    if not folder.is_dir():
        raise BadRequest(f"--folder {folder}: there is no such directory; name one with job files")
    serve_stdio(folder, allow_actions=allow_actions)
