"""S3 servers on loopback: rclone without conditional writes, and moto with a blocking proxy."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import Store
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from worker.support.run_driver import free_port

KEY, SECRET, BUCKET = "holdfast", "tide-and-kelp", "bucket"
RUNS = f"s3://{BUCKET}/runs"
PATIENCE_S = 240
"""Longest wait for a server, on a machine with a load of 30."""


def credentials(endpoint: str) -> dict[str, str]:
    """Environment variables of boto3."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def open_bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, job: str = "lesson") -> Store:
    """Open the store of a job in a server's bucket and set the credentials in this process."""
    for name, value in credentials(endpoint).items():
        monkeypatch.setenv(name, value)
    return open_store(RUNS, job, os.environ)


@contextmanager
def rclone(directory: Path) -> Iterator[str]:
    """Run a server that stores buckets as folders and ignores conditions; yield its endpoint."""
    (directory / BUCKET).mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    program = Path(sysconfig.get_path("scripts")) / "rclone"
    command = [f"{program}", "serve", "s3", "--addr", address, "--auth-key", f"{KEY},{SECRET}"]
    server = subprocess.Popen([*command, "--config", "", f"{directory}"], stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://{address}", server)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


class BlockingProxy:
    """Blocks uploads of keys that contain a word until it is opened."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._word: str | None = None
        self._open = threading.Event()
        self.is_reached = threading.Event()

    def close_for(self, word: str) -> None:
        """Block uploads of keys that contain `word`."""
        self._word = word

    def open(self) -> None:
        """Continue blocked uploads. Requests of disconnected clients are discarded."""
        self._word = None
        self._open.set()

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        if environ["REQUEST_METHOD"] == "PUT" and self._word and self._word in environ["PATH_INFO"]:
            self.is_reached.set()
            self._open.wait(60)
            start_response("503 Slow Down", [])
            return [b""]
        return self._app(environ, start_response)


@contextmanager
def moto() -> Iterator[tuple[str, BlockingProxy]]:
    """Run an empty server with objects in memory and `If-None-Match`; yield its endpoint and proxy."""
    gate = BlockingProxy(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, gate, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        # All of these servers in a process share their objects.
        reset = urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset, timeout=PATIENCE_S).close()
        make_bucket = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(make_bucket, timeout=PATIENCE_S).close()
        yield endpoint, gate
    finally:
        gate.open()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until a server responds, with any status."""
    pause, until_s = threading.Event(), time.monotonic() + PATIENCE_S
    while server.poll() is None and time.monotonic() < until_s:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE_S).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            return
        except OSError:
            pause.wait(0.05)
        else:
            return
    raise AssertionError(f"no server answers at {url}")
