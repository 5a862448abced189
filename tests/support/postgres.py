"""A PostgreSQL server for tests: in its own directory, on a Unix socket, removed at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import psycopg
from holdfast.store.database import open_database, upgrade
from sqlalchemy import make_url

USER = "postgres"
PATTERN = "pattern"
START_TIMEOUT_S = 240
CONFIG = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "50",
    "log_min_messages": "panic",
}


class NotInstalled(Exception):
    """Raised if the server programs of PostgreSQL are not installed."""


PATIENT: Final = "idle_in_transaction_session_timeout=60s"
"""Timeout of an idle transaction in tests of other things.

On a busy machine, a test may pause within a write for longer than a service may.
"""


def with_options(url: str, *options: str) -> str:
    """Return the URL of a database with server options."""
    words = " ".join(f"-c {option}" for option in options)
    return make_url(url).update_query_dict({"options": words}).render_as_string(hide_password=False)


class Cluster:
    """A running PostgreSQL with a separate database for each test."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._become = _another_user() if os.geteuid() == 0 else []
        # Short, since the path of a socket is limited to 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="hfpg-", dir="/tmp"))
        self._server: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._has_pattern = False
        if self._become:
            shutil.chown(self._folder, _user_name())
        command = [self._programs / "initdb", "-D", self._data, "-U", USER, "-A", "trust"]
        flags = ["-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(
            [*self._become, *command, *flags], check=True, capture_output=True, cwd=self._folder
        )

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        settings = [f"-c{name}={value}" for name, value in CONFIG.items()]
        command = [self._programs / "postgres", "-D", self._data, "-k", self._folder, *settings]
        # A child process and not a daemon: it is reaped here, and no zombie's lock file blocks the next start.
        self._server = subprocess.Popen([*self._become, *command], cwd=self._folder)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._server.poll() is None, "PostgreSQL ended as soon as it was started"
            assert time.monotonic() < deadline_s, "PostgreSQL does not answer"

    def stop(self) -> None:
        """Close all connections and stop at once, as if killed."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()
            self._server = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Accept connections without answering, like a machine without memory or disk space."""
        assert self._server is not None
        server = psutil.Process(self._server.pid)
        server.suspend()  # First, so that the server starts no more backends.
        backends = server.children(recursive=True)
        for backend in backends:
            backend.suspend()
        try:
            yield
        finally:
            for process in (*backends, server):
                process.resume()

    def remove(self) -> None:
        """Stop the server and delete its directory."""
        self.stop()
        shutil.rmtree(self._folder)

    def new_database(self, made_how: str = "") -> str:
        """Create a database, empty unless `made_how` names a template, and return its URL."""
        self._made += 1
        name = f"holdfast_{self._made}"
        self._order(f"CREATE DATABASE {name} {made_how}")
        return self._url(name)

    def new_pattern_copy(self) -> str:
        """Create a database with the empty tables of this version, and return its URL."""
        if not self._has_pattern:
            self._order(f"CREATE DATABASE {PATTERN}")
            engine = open_database(self._url(PATTERN))
            upgrade(engine)
            engine.dispose()
            self._has_pattern = True
        # Copying files takes half the time of logging their pages.
        return self.new_database(f"TEMPLATE {PATTERN} STRATEGY FILE_COPY")

    def _order(self, words: str) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(words)

    def _url(self, name: str) -> str:
        return f"postgresql://{USER}@/{name}?host={self._folder}"

    @property
    def _conninfo(self) -> str:
        return f"host={self._folder} user={USER} dbname=postgres"

    def _answers(self) -> bool:
        command = [self._programs / "pg_isready", "-q", "-h", self._folder, "-U", USER]
        return subprocess.run(command, check=False).returncode == 0


def _programs() -> Path:
    """Return the directory of `initdb`: on PATH, or the newest of Debian's."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
    on_path = shutil.which("initdb")
    for folder in [Path(on_path).resolve().parent] if on_path else debian[::-1]:
        if all((folder / name).exists() for name in ("initdb", "postgres", "pg_isready")):
            return folder
    raise NotInstalled(
        "PostgreSQL is not installed (no initdb on PATH or in /usr/lib/postgresql); on Debian: apt-get install postgresql"
    )


def _user_name() -> str:
    """Return a user other than root, as which PostgreSQL refuses to run."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NotInstalled("PostgreSQL will not run as root, and there is no user postgres or nobody")


def _another_user() -> list[str]:
    if not shutil.which("setpriv"):
        raise NotInstalled("PostgreSQL will not run as root, and there is no setpriv (util-linux)")
    user = pwd.getpwnam(_user_name())
    # Ends with this process, also if it is killed.
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["setpriv", *ids, "--pdeathsig=QUIT", "--"]
