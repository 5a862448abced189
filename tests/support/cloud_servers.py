"""Servers of Google Cloud Storage and Azure Blob Storage on loopback.

Azurite is Microsoft's own. Of Google's emulators none knows both the XML API and generations, so there is only ours.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import sysconfig
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final
from urllib.parse import urlencode

import pytest
from fake_s3 import FakeS3
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import Store

AZURITE: Final = (
    Path(__file__).parents[2] / "build/azurite/node_modules/azurite/dist/src/blob/main.js"
)
ACCOUNT: Final = "devstoreaccount1"
ACCOUNT_KEY: Final = base64.b64encode(b"a key that only loopback knows").decode()
CONTAINER: Final = "bucket"
LISTENS: Final = re.compile(r"listens on (http://127\.0\.0\.1:\d+)")
NO_CREDENTIALS: Final = {
    # Where the machine's identity would be asked for, nothing listens.
    "GCE_METADATA_HOST": "127.0.0.1:9",
    "GCE_METADATA_IP": "127.0.0.1:9",
    "AZURE_MSI_ENDPOINT": "http://127.0.0.1:9/",
}


CLOUD_SERVERS: Final = ("google", "azure", "azurite")
"""Fixtures of servers: the fake ones, and Microsoft's."""


@dataclass(frozen=True)
class CloudServer:
    """A server with an empty bucket or container."""

    scheme: str
    variables: Mapping[str, str]
    """What a process needs to reach it."""

    @property
    def runs(self) -> str:
        """The store of jobs on this server."""
        return f"{self.scheme}://{CONTAINER}/runs"

    def open(
        self, monkeypatch: pytest.MonkeyPatch, prefix: str = "runs", job: str = "lesson"
    ) -> Store:
        """Open the store of a job, with the variables in this process."""
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        return open_store(f"{self.scheme}://{CONTAINER}/{prefix}", job, os.environ)


def fake_google(s3: FakeS3) -> CloudServer:
    """A fake S3 as Google Cloud Storage."""
    return CloudServer("gs", google_variables(s3.google))


def fake_azure(s3: FakeS3) -> CloudServer:
    """A fake S3 as Azure Blob Storage."""
    return CloudServer("az", azure_variables(s3.azure))


FAKE_CLOUDS: Final[Mapping[str, Callable[[FakeS3], CloudServer]]] = {
    "gs": fake_google,
    "az": fake_azure,
}
"""The clouds whose protocols a fake S3 knows, by URL scheme."""


class NotInstalled(Exception):
    """Azurite, or Node.js, is not installed."""


def google_variables(endpoint: str) -> dict[str, str]:
    """Variables of Google's clients for a server without credentials."""
    return {"STORAGE_EMULATOR_HOST": endpoint}


def azure_variables(endpoint: str, account: str = ACCOUNT) -> dict[str, str]:
    """Variables of Azure's clients for a server."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": account,
        "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        "AZURE_STORAGE_ENDPOINT": endpoint,
    }


@contextmanager
def azurite() -> Iterator[str]:
    """Run Microsoft's emulator with an empty container, in memory; yield the account's URL."""
    node = shutil.which("node") or f"{sysconfig.get_path('scripts')}/node"
    if not AZURITE.exists() or not Path(node).exists():
        raise NotInstalled("Azurite is not installed; run make azurite")
    command = [node, f"{AZURITE}", "--blobHost", "127.0.0.1", "--blobPort", "0"]
    command += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
    # Into a file: it logs each request, and would stop at a full pipe.
    with (
        NamedTemporaryFile("w") as log,
        subprocess.Popen(command, stdout=log.fileno(), env=environment) as server,
    ):
        try:
            endpoint = f"{_address(server, Path(log.name))}/{ACCOUNT}"
            make_container(endpoint, CONTAINER)
            yield endpoint
        finally:
            server.terminate()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until a server has written where it listens."""
    pause = threading.Event()
    while server.poll() is None:
        if found := LISTENS.search(log.read_text()):
            return found[1]
        pause.wait(0.05)
    raise AssertionError(f"Azurite has ended: {log.read_text()}")


def make_container(endpoint: str, name: str) -> None:
    """Create a container of Azurite, which obstore cannot do."""
    date, version = email.utils.formatdate(usegmt=True), "2021-12-02"
    headers = f"x-ms-date:{date}\nx-ms-version:{version}"
    # A server that is addressed by its path has the account twice in what is signed.
    blank = "\n" * 12
    signed = f"PUT{blank}{headers}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT")
    for line in headers.splitlines():
        request.add_header(*line.split(":", 1))
    signature = base64.b64encode(digest).decode()
    request.add_header("Authorization", f"SharedKey {ACCOUNT}:{signature}")
    urllib.request.urlopen(request, timeout=30).close()


def signature(key: bytes | None = None, permissions: str = "racwdl") -> str:
    """A shared access signature for the container, as the portal of Azure creates it."""
    start, end, version = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "2019-12-12"
    signed = [permissions, start, end, f"/blob/{ACCOUNT}/{CONTAINER}", "", "", "https,http"]
    signed += [version, "c", *[""] * 6]
    secret = base64.b64decode(ACCOUNT_KEY) if key is None else key
    digest = hmac.new(secret, "\n".join(signed).encode(), hashlib.sha256).digest()
    fields = {"sv": version, "sr": "c", "sp": permissions, "st": start, "se": end}
    fields |= {"spr": "https,http", "sig": base64.b64encode(digest).decode()}
    return urlencode(fields)
