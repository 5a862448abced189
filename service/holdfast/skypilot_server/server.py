"""Ensures a running SkyPilot server with the configuration that Holdfast needs."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from holdfast.errors import AddressInUse
from holdfast.skypilot_server import process
from holdfast.skypilot_server.admission_plugin import configure_gate, install_plugin
from holdfast.skypilot_server.configuration import GATE, Configuration, Policy, merged_configuration
from holdfast.skypilot_server.environment import link_credentials, server_environment
from holdfast.skypilot_server.interpreter import Interpreter, find_interpreter
from holdfast.skypilot_server.process import SkyPilotServer
from holdfast.skypilot_server.server_dir import (
    DEFAULT_PORT,
    ProgressCallback,
    ServerDir,
    write_atomically,
)


def open_server(
    place: ServerDir,
    *,
    python: Path | None,
    port: int | None,
    gate_url: str,
    report: ProgressCallback,
) -> str:
    """Return the address of a responding server: the running one, or a new one.

    `python` and `port` are the user's choices; None selects defaults.

    Raises:
        NotInstalled: SkyPilot is not installed.
        EngineNotStarted: the server does not respond.
        AddressInUse: another process uses the port.
        StoreUnavailable: the server's directory cannot be used.
        BadRequest: its configuration cannot be parsed.
    """
    with place.lock():
        found = find_interpreter(place, python)
        config = _write(place, install_plugin(place, found, gate_url, report), report)
        clouds = link_credentials(Path.home(), place.home)
        report(
            f"cloud credentials found by SkyPilot: {', '.join(clouds) or 'environment variables only'}"
        )
        server = process.running_server(place)
        if server and (why := _restart_reason(server, config, port)):
            report(f"restarting SkyPilot's API server {why}; jobs continue")
            port = port or server.port
            process.stop(server, place, report)
            server = None
        if server is None:
            server = _start(place, found, port or DEFAULT_PORT, config, report)
        else:
            report(f"SkyPilot's API server is already running, process {server.pid}")
        version = process.wait_until_ready(server, place, report)
        report(f"SkyPilot {version} is running at {server.url}; log: {place.log}")
        return server.url


def configure_shared(
    place: ServerDir, gate_url: str, report: ProgressCallback, *, has_gate: bool
) -> None:
    """Write configuration and gate for a remote or containerized server that shares this HOME.

    Raises:
        StoreUnavailable: the server's directory cannot be used.
        BadRequest: the existing configuration cannot be parsed.
    """
    with place.lock():
        policy = configure_gate(place, gate_url) if has_gate else Policy(gate_url)
        _write(place, policy, report)
        if not has_gate:
            report(
                f"note: SkyPilot asks this service about every request: while this service is down, jobs are not recovered "
                f"and launches fail; to avoid this, install {GATE} in its environment and set HOLDFAST_SKYPILOT_HAS_GATE=true"
            )


def _write(place: ServerDir, policy: Policy, report: ProgressCallback) -> Configuration:
    """Write the server's configuration unless it is already correct."""
    before = place.config.read_text(encoding="utf-8") if place.config.exists() else ""
    config = merged_configuration(before, policy)
    for note in config.notes:
        report(f"note: {place.config}: {note}")
    if config.text != before:
        kept = place.config.with_name("config.yaml.before-holdfast")
        if (
            before and not kept.exists()
        ):  # The first version is the user's; later ones are partly ours.
            write_atomically(kept, before)
        write_atomically(place.config, config.text)
        report(f"wrote {place.config}, parts of which SkyPilot reads only at startup")
    return config


def stop_server(place: ServerDir, report: ProgressCallback) -> bool:
    """Stop the server started in this directory; False if there is none.

    Its jobs are not affected.
    """
    with place.lock():
        server = process.running_server(place)
        if server is None:
            return False
        report(f"stopping SkyPilot's API server, process {server.pid}")
        process.stop(server, place, report)
    if pids := process.controllers(place):
        words = " ".join(map(str, pids))
        report(
            f"its jobs controllers keep running: jobs continue and cost money, but their state is not recorded "
            f"until the server is back. When no job is running, stop them with: kill {words}"
        )
    return True


def _restart_reason(server: SkyPilotServer, config: Configuration, port: int | None) -> str | None:
    """Return why a running server must be restarted; None if it can be used."""
    if port not in {None, server.port}:
        return f"on port {port} instead of {server.port}"
    if server.at_start != config.at_start:
        return "because settings that it reads only at startup have changed"
    return None


def _start(
    place: ServerDir, found: Interpreter, port: int, config: Configuration, report: ProgressCallback
) -> SkyPilotServer:
    if not _is_free(port):
        raise AddressInUse(
            f"port {port} is used by a process that was not started here; choose another with --skypilot-port, or "
            f"set HOLDFAST_SKYPILOT_URL=http://127.0.0.1:{port} if it is a SkyPilot API server that you want to use"
        )
    report(f"starting SkyPilot {found.version} with {found.python}; this takes up to 30 s")
    if dead := process.recorded_server(place):
        process.kill_workers(dead, place)
    given = server_environment(place.home, port, found.python)
    return process.start(place, found.python, port, config.at_start, given)


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
