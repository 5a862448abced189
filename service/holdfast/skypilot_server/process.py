"""One server as a process: started in a session of its own, recognised later, ended by its number.

A number alone may belong to anybody by now. A process is the server that was started here if it has the number, was
born when that one was, and runs SkyPilot's server on that port.
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
from holdfast.skypilot_server.server_dir import ServerDir, Tell, write_whole

MODULE: Final = "sky.server.server"
START_S: Final = 180.0
"""How long a start may take: 5 to 25 s are usual. Shorter gives up on a busy machine."""
STOP_S: Final = 90.0
"""How long a server may take to end what it is at before it is killed; with nothing to do it takes 9 s."""
TELL_EVERY_S: Final = 10.0
TAIL_LINES: Final = 15

_POLL_S: Final = 0.3
_SAME_BIRTH_S: Final = 60.0
"""The kernel counts births from its start; what that means in time moves a little when the clock is set."""
_IN_A_SESSION: Final = '"$@" </dev/null >>"$0" 2>&1 & echo $!'


@dataclass(frozen=True, slots=True)
class SkyPilotServer:
    """A server that was started here."""

    pid: int
    born: float
    """Seconds since the epoch, as the system tells of the process."""
    session: int
    """Its session, in which its workers are, too; jobs controllers have their own."""
    port: int
    at_start: str
    """Digest of the configuration that it read at its start."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def process(self) -> psutil.Process | None:
        """The process, if it lives and is this server."""
        try:
            process = psutil.Process(self.pid)
            words = process.cmdline()
            is_it = abs(process.create_time() - self.born) < _SAME_BIRTH_S
            lives = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return None
        # While a program takes the place of another in a process, which a start does twice, it has no words at all.
        is_ours = not words or (MODULE in words and _port(self.port) in words)
        return process if is_it and lives and is_ours else None

    def version(self) -> str | None:
        """The version of SkyPilot that it runs; None while it does not answer."""
        try:
            told = httpx2.get(f"{self.url}/api/health", timeout=5.0, trust_env=False).json()
        except (httpx2.HTTPError, ValueError):
            return None
        return str(told["version"]) if isinstance(told, dict) and told.get("version") else None


def remembered(place: ServerDir) -> SkyPilotServer | None:
    """The server that was started in this folder last, whether it lives or not."""
    try:
        return SkyPilotServer(**json.loads(place.record.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def find(place: ServerDir) -> SkyPilotServer | None:
    """The server that was started in this folder, if it lives."""
    server = remembered(place)
    return server if server and server.process() else None


def start(
    place: ServerDir, python: Path, port: int, at_start: str, environment: Mapping[str, str]
) -> SkyPilotServer:
    """A server that has begun to start. It belongs to nobody's terminal, and outlives us.

    Raises:
        EngineNotStarted: it ended at once.
    """
    if place.log.exists():
        place.log.replace(place.log.with_suffix(".log.1"))
    argv = [str(python), "-m", MODULE, "--host=127.0.0.1", _port(port)]
    # A shell in between, which ends at once: nobody has to wait for its child, and the session is not ours.
    started = subprocess.run(
        ["sh", "-c", _IN_A_SESSION, str(place.log), *argv],
        cwd=place.home,  # `-m` looks into the folder first, and ours may have one called `sky`.
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
        raise EngineNotStarted(_epitaph(place, argv)) from error
    server = SkyPilotServer(pid, born, session, port, at_start)
    write_whole(place.record, json.dumps(asdict(server)))
    return server


def await_answer(server: SkyPilotServer, place: ServerDir, tell: Tell) -> str:
    """The version of SkyPilot that answers there.

    Raises:
        EngineNotStarted: it ended, or is silent; the end of its log is in the message.
    """
    for _ in _ticks(START_S, tell, "waiting for SkyPilot's API server"):
        if version := server.version():
            return version
        if server.process() is None:
            raise EngineNotStarted(_epitaph(place, ["SkyPilot's API server"]))
    raise EngineNotStarted(
        f"SkyPilot's API server (process {server.pid}) does not answer at {server.url} after {START_S:.0f} s; "
        f"holdfast up --stop ends it. The end of its log:\n{tail(place.log)}"
    )


def end(server: SkyPilotServer, place: ServerDir, tell: Tell) -> None:
    """End a server with its workers; what it is at is ended first if that takes no longer than it should."""
    process = server.process()
    if process is not None:
        process.terminate()
        for _ in _ticks(STOP_S, tell, "waiting for SkyPilot's API server to end"):
            if server.process() is None:
                break
        else:
            tell(f"it did not end within {STOP_S:.0f} s and is killed")
            process.kill()
    clear_away(server, place)
    place.record.unlink(missing_ok=True)


def clear_away(server: SkyPilotServer, place: ServerDir) -> None:
    """End what a server that is no more has left behind: SkyPilot's workers do not end with it, and hold a port."""
    killed: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            in_session = os.getsid(process.pid) == server.session
            if in_session and process.pid != server.pid and _is_worker(process, place):
                process.kill()
                killed.append(process)
    # Until they are gone, their port is taken.
    psutil.wait_procs(killed, timeout=5)


def _is_worker(process: psutil.Process, place: ServerDir) -> bool:
    """Whether a process of the server's session is one of its own: sessions' numbers are used again, too."""
    title = (process.cmdline() or [""])[0]
    # A worker's title is written over its environment.
    return title.startswith("SkyPilot:") or process.environ().get("HOME") == str(place.home)


def controllers(place: ServerDir) -> list[int]:
    """The processes that keep SkyPilot's managed jobs in place; they belong to no server, and outlive it."""
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
    """The last lines of a log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(lines[-TAIL_LINES:]) or "(it is empty)"


def _epitaph(place: ServerDir, argv: Sequence[str]) -> str:
    return f"{shlex.join(argv) if len(argv) > 1 else argv[0]} ended at its start. The end of {place.log}:\n{tail(place.log)}"


def _port(port: int) -> str:
    return f"--port={port}"


def _ticks(limit_s: float, tell: Tell, what: str) -> Iterator[None]:
    """Moments to look at something, for so long; every now and then somebody is told that it takes time."""
    began, told = time.monotonic(), 0.0
    while (gone := time.monotonic() - began) < limit_s:
        yield
        if gone - told >= TELL_EVERY_S:
            told = gone
            tell(f"{what}: {gone:.0f} s so far")
        time.sleep(_POLL_S)
