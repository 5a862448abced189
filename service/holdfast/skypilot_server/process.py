"""One server process: started in its own session, identified later, stopped by pid.

A pid may be reused. A process is the server started here if pid and start time match and it runs SkyPilot's server on
that port.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx2
import psutil

from holdfast.errors import EngineNotStarted
from holdfast.skypilot_server.server_dir import ProgressCallback, ServerDir, write_atomically

MODULE: Final = "sky.server.server"
START_S: Final = 180.0
"""Limit for startup, which usually takes 5 to 25 s. A lower value fails on a busy machine."""
STOP_S: Final = 90.0
"""Time for a server to finish its work before it is killed; an idle one takes 9 s."""
PROGRESS_INTERVAL_S: Final = 10.0
TAIL_LINES: Final = 15

_POLL_S: Final = 0.3
_SAME_BIRTH_S: Final = 60.0
"""Tolerance for start times, which shift slightly when the system clock is set."""
_START_SCRIPT: Final = '"$@" </dev/null >>"$0" 2>&1 & echo $!'


@dataclass(frozen=True, slots=True)
class SkyPilotServer:
    """A server that was started here."""

    pid: int
    born: float
    """Start time of the process, in seconds since the epoch."""
    session: int
    """Session of the server and its workers; jobs controllers have their own sessions."""
    port: int
    at_start: str
    """Digest of the configuration read at startup."""

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    def process(self) -> psutil.Process | None:
        """Return the process if it is alive and is this server."""
        try:
            process = psutil.Process(self.pid)
            words = process.cmdline()
            is_it = abs(process.create_time() - self.born) < _SAME_BIRTH_S
            lives = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return None
        # During an exec, which happens twice at startup, a process has no arguments.
        is_ours = not words or (MODULE in words and _port(self.port) in words)
        return process if is_it and lives and is_ours else None

    def version(self) -> str | None:
        """Return the running SkyPilot version; None while it does not respond."""
        try:
            health = httpx2.get(f"{self.url}/api/health", timeout=5.0, trust_env=False).json()
        except (httpx2.HTTPError, ValueError):
            return None
        return (
            str(health["version"]) if isinstance(health, dict) and health.get("version") else None
        )


def recorded_server(place: ServerDir) -> SkyPilotServer | None:
    """Return the last server started in this directory, alive or not."""
    try:
        return SkyPilotServer(**json.loads(place.record.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def running_server(place: ServerDir) -> SkyPilotServer | None:
    """Return the server started in this directory, if it is alive."""
    server = recorded_server(place)
    return server if server and server.process() else None


def start(
    place: ServerDir, python: Path, port: int, at_start: str, environment: Mapping[str, str]
) -> SkyPilotServer:
    """Start a server, detached from the terminal so that it outlives this process.

    Raises:
        EngineNotStarted: it exited at once.
    """
    if place.log.exists():
        place.log.replace(place.log.with_suffix(".log.1"))
    argv = [str(python), "-m", MODULE, "--host=127.0.0.1", _port(port)]
    # A shell that exits at once starts the server, so that no process must wait for it and the session is its own.
    started = subprocess.run(
        ["sh", "-c", _START_SCRIPT, str(place.log), *argv],
        cwd=place.home,  # `-m` searches the working directory first, and ours may contain a `sky`.
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    pid = int(started.stdout)
    try:
        born, session = psutil.Process(pid).create_time(), os.getsid(pid)
    except (psutil.Error, ProcessLookupError) as error:
        raise EngineNotStarted(_exit_message(place, argv)) from error
    server = SkyPilotServer(pid, born, session, port, at_start)
    write_atomically(place.record, json.dumps(asdict(server)))
    return server


def wait_until_ready(server: SkyPilotServer, place: ServerDir, report: ProgressCallback) -> str:
    """Wait until the server responds; return its SkyPilot version.

    Raises:
        EngineNotStarted: it exited or does not respond; the message includes the end of its log.
    """
    for _ in _ticks(START_S, report, "waiting for SkyPilot's API server"):
        if version := server.version():
            return version
        if server.process() is None:
            raise EngineNotStarted(_exit_message(place, ["SkyPilot's API server"]))
    raise EngineNotStarted(
        f"SkyPilot's API server (process {server.pid}) did not respond at {server.url} within {START_S:.0f} s; "
        f"stop it with holdfast up --stop. The end of its log:\n{tail(place.log)}"
    )


def stop(server: SkyPilotServer, place: ServerDir, report: ProgressCallback) -> None:
    """Stop a server with its workers; it may finish its work within a limit."""
    process = server.process()
    if process is not None:
        process.terminate()
        for _ in _ticks(STOP_S, report, "waiting for SkyPilot's API server to stop"):
            if server.process() is None:
                break
        else:
            report(f"it did not stop within {STOP_S:.0f} s; killing it")
            process.kill()
    kill_workers(server, place)
    place.record.unlink(missing_ok=True)


def kill_workers(server: SkyPilotServer, place: ServerDir) -> None:
    """Kill the workers of a server that has exited: they outlive it and hold a port."""
    killed: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            in_session = os.getsid(process.pid) == server.session
            if in_session and process.pid != server.pid and _is_worker(process, place):
                process.kill()
                killed.append(process)
    # Until they have exited, their port is in use.
    psutil.wait_procs(killed, timeout=5)


def _is_worker(process: psutil.Process, place: ServerDir) -> bool:
    """Whether a process in the server's session is its worker; session numbers are reused."""
    title = (process.cmdline() or [""])[0]
    # A worker's title overwrites its environment.
    return title.startswith("SkyPilot:") or process.environ().get("HOME") == str(place.home)


def controllers(place: ServerDir) -> list[int]:
    """Return the pids of SkyPilot's jobs controllers, which outlive the server."""
    found = []
    for process in psutil.process_iter():
        try:
            is_one = any("sky.jobs.controller" in word for word in process.cmdline())
            if is_one and process.environ().get("HOME") == str(place.home):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(lines[-TAIL_LINES:]) or "(it is empty)"


def _exit_message(place: ServerDir, argv: Sequence[str]) -> str:
    return f"{shlex.join(argv) if len(argv) > 1 else argv[0]} exited at startup. The end of {place.log}:\n{tail(place.log)}"


def _port(port: int) -> str:
    return f"--port={port}"


def _ticks(limit_s: float, report: ProgressCallback, what: str) -> Iterator[None]:
    """Yield at intervals for `limit_s` seconds, and report the elapsed time now and then."""
    began, reported = time.monotonic(), 0.0
    while (gone := time.monotonic() - began) < limit_s:
        yield
        if gone - reported >= PROGRESS_INTERVAL_S:
            reported = gone
            report(f"{what}: {gone:.0f} s so far")
        time.sleep(_POLL_S)
