"""A server that runs and has the configuration that Holdfast needs, whatever was there before."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from holdfast.errors import AddressInUse
from holdfast.skypilot_server import process
from holdfast.skypilot_server.admission_plugin import address_gate, install_plugin
from holdfast.skypilot_server.configuration import GATE, Configuration, Policy, configured
from holdfast.skypilot_server.environment import environment, show_credentials
from holdfast.skypilot_server.interpreter import Interpreter, find_interpreter
from holdfast.skypilot_server.process import SkyPilotServer
from holdfast.skypilot_server.server_dir import DEFAULT_PORT, ServerDir, Tell, write_whole


def open_server(
    place: ServerDir, *, python: Path | None, port: int | None, gate_url: str, tell: Tell
) -> str:
    """The address of a server that answers: the one that runs, or a new one.

    `python` and `port` are what a person asks for; None leaves the choice to us.

    Raises:
        NotInstalled: there is no SkyPilot to start.
        EngineNotStarted: it does not answer.
        AddressInUse: somebody else's process has the port.
        StoreUnavailable: its folder cannot be used.
        BadRequest: its configuration cannot be understood.
    """
    with place.alone():
        found = find_interpreter(place, python)
        config = _write(place, install_plugin(place, found, gate_url, tell), tell)
        clouds = show_credentials(Path.home(), place.home)
        tell(f"keys that SkyPilot sees: {', '.join(clouds) or 'none but variables of yours'}")
        server = process.find(place)
        if server and (why := _why_anew(server, config, port)):
            tell(f"SkyPilot's API server starts anew, {why}; jobs go on meanwhile")
            port = port or server.port
            process.end(server, place, tell)
            server = None
        if server is None:
            server = _start(place, found, port or DEFAULT_PORT, config, tell)
        else:
            tell(f"SkyPilot's API server runs already, process {server.pid}")
        version = process.await_answer(server, place, tell)
        tell(f"SkyPilot {version} is at {server.url}, its log in {place.log}")
        return server.url


def configure_shared(place: ServerDir, gate_url: str, tell: Tell, *, has_gate: bool) -> None:
    """A server on another machine or in a container, whose HOME is this folder, too, has its configuration and its gate.

    Raises:
        StoreUnavailable: its folder cannot be used.
        BadRequest: what is there cannot be understood.
    """
    with place.alone():
        policy = address_gate(place, gate_url) if has_gate else Policy(gate_url)
        _write(place, policy, tell)
        if not has_gate:
            tell(
                f"note: SkyPilot asks this service about every request: while this service is down, jobs are not recovered "
                f"and nobody launches; with {GATE} in its environment, HOLDFAST_SKYPILOT_HAS_GATE=true ends that"
            )


def _write(place: ServerDir, policy: Policy, tell: Tell) -> Configuration:
    """The server's configuration, written unless it was right already."""
    before = place.config.read_text(encoding="utf-8") if place.config.exists() else ""
    config = configured(before, policy)
    for note in config.notes:
        tell(f"note: {place.config}: {note}")
    if config.text != before:
        kept = place.config.with_name("config.yaml.before-holdfast")
        if (
            before and not kept.exists()
        ):  # What lies there is a person's; what came after it, partly ours.
            write_whole(kept, before)
        write_whole(place.config, config.text)
        tell(f"wrote {place.config}, part of which SkyPilot reads at its start only")
    return config


def end_server(place: ServerDir, tell: Tell) -> bool:
    """End the server that was started in this folder; False if there was none. Its jobs are left alone."""
    with place.alone():
        server = process.find(place)
        if server is None:
            return False
        tell(f"ending SkyPilot's API server, process {server.pid}")
        process.end(server, place, tell)
    if pids := process.controllers(place):
        words = " ".join(map(str, pids))
        tell(
            f"its jobs controllers go on: running jobs are kept in place and cost money as before, and nobody records "
            f"it until the server is back. Once no job runs, this ends them, too: kill {words}"
        )
    return True


def _why_anew(server: SkyPilotServer, config: Configuration, port: int | None) -> str | None:
    """Why a server that runs will not do; None if it will."""
    if port not in {None, server.port}:
        return f"on port {port} instead of {server.port}"
    if server.at_start != config.at_start:
        return "as its configuration or its gate has changed in what it reads at its start only"
    return None


def _start(
    place: ServerDir, found: Interpreter, port: int, config: Configuration, tell: Tell
) -> SkyPilotServer:
    if not _is_free(port):
        raise AddressInUse(
            f"port {port} belongs to a process that was not started here; choose another with --skypilot-port, or "
            f"set HOLDFAST_SKYPILOT_URL=http://127.0.0.1:{port} if it is a SkyPilot API server that you want to use"
        )
    tell(f"starting SkyPilot {found.version} with {found.python}; that takes up to half a minute")
    if dead := process.remembered(place):
        process.clear_away(dead, place)
    given = environment(place.home, port, found.python)
    return process.start(place, found.python, port, config.at_start, given)


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
