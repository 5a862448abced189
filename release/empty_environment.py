"""The wheel, installed into an empty environment and used as a user would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from release.checks import ReleaseError
from release.packages import run

EXTRAS: Final = "service,postgres"
"""As in the image: no torch, which takes gigabytes and says nothing about the wheel."""
PAGES: Final = {
    "/readyz": '"ready"',
    "/": "<title>Holdfast</title>",
    "/docs/": "Holdfast",
    "/docs/errors": "#",
}
"""Addresses that must answer, with a part of the answer."""
_STARTS_WITHIN_S: Final = 120
"""A lower value fails releases on busy machines; a higher value delays the report of a service that hangs."""


def check_wheel(wheel: Path, lock: Path, version: str) -> None:
    """Install the wheel at the versions of the lock, and use each program.

    Raises:
        ReleaseError: it cannot be installed, or something does not work.
    """
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        run([sys.executable, "-m", "venv", folder / "venv"], _environment(folder))
        programs = folder / "venv/bin"
        pip = programs / "pip"
        run([pip, "install", "--constraint", lock, f"{wheel}[{EXTRAS}]"], _environment(folder))
        run([pip, "check"], _environment(folder))
        use_programs(programs, folder, version)


def use_programs(programs: Path, folder: Path, version: str) -> None:
    """Use the installed programs, with files below `folder`.

    Raises:
        ReleaseError: one of them does not work.
    """
    environment = _environment(folder)
    shown = run([programs / "holdfast", "--version"], environment)
    if version not in shown:
        raise ReleaseError(f"holdfast --version prints {shown.strip()!r}, without {version}")
    run([programs / "holdfast-worker", "--help"], environment)
    run(
        [programs / "python", "-c", "import holdfast.client, holdfast_worker.protocol"], environment
    )
    with _service(programs, folder) as url:
        for path, part in PAGES.items():
            if part not in (answer := _read(url + path)):
                raise ReleaseError(f"{path} of the installed service answers {answer[:300]!r}")
        run([programs / "holdfast", "doctor"], environment | {"HOLDFAST_URL": url})


@contextmanager
def _service(programs: Path, folder: Path) -> Iterator[str]:
    """Serve on a free port; yield the address."""
    log = folder / "service.txt"
    words: list[str | Path] = [programs / "holdfast", "serve", "--port", "0"]
    with log.open("w") as output:
        service = subprocess.Popen(
            words, env=_environment(folder), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield _address(service, log)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait()


def _address(service: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the service is ready; return the address that it prints."""
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while service.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            try:
                _read(f"{found[0]}/readyz")
            except (ReleaseError, OSError):
                pass
            else:
                return found[0]
        time.sleep(0.2)
    raise ReleaseError(f"the installed service does not start:\n{log.read_text()[-3000:]}")


def _read(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - an address of this machine
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        raise ReleaseError(f"{url} answers {error.code}: {error.read()[:300].decode()}") from error


def _environment(folder: Path) -> dict[str, str]:
    """What programs get: nothing of this checkout, and only what pip needs to reach its index."""
    kept = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
    found = {
        key: value
        for key, value in os.environ.items()
        if key.upper() in kept or key.startswith("PIP_")
    }
    return found | {"HOME": str(folder), "HOLDFAST_HOME": str(folder / "home")}
