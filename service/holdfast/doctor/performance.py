"""Speed of the resources that training waits for: disk, store, cores and network.

Loader settings (`num_workers`, `pin_memory`) are in the script and are not measured.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from holdfast.doctor.findings import Finding, ok, warning
from holdfast.errors import CheckpointStoreRefused, CheckpointStoreUnreachable

SIZE_BYTES: Final = 64 * 1024 * 1024
"""Bytes written and sent.

A lower value measures latency; a higher value delays users with a slow store.
"""
SLOW_BYTES_PER_S: Final = 50e6
"""Bytes per second of a disk or store.

Below it, a checkpoint of 10 GB takes more than three minutes, longer than most notices of a spot node.
"""
FEW_CPUS: Final = 4
"""Cores per GPU. With fewer, decoding data is usually slower than the GPU."""
_CHUNK: Final = bytes(1024 * 1024)
_LOOPBACK: Final = "127.0.0.1"


def measure_performance(
    folder: Path, store: str | None, gpus: int, size_bytes: int = SIZE_BYTES
) -> Iterator[Finding]:
    """Measure a directory, a store if given, and this machine with its number of GPUs."""
    yield _cores(len(os.sched_getaffinity(0)), gpus)
    yield _rated("disk", f"{folder}", lambda: _write(folder, size_bytes), size_bytes)
    yield _rated("loopback", _LOOPBACK, lambda: _send(size_bytes), size_bytes)
    if store:
        yield _rated("store", store, lambda: _write_object(store, size_bytes), size_bytes)
    yield ok(
        "loader",
        "num_workers and pin_memory are in the script and not measured: time the loop over the loader alone, and "
        "compare it with a step",
    )


def _cores(cpus: int, gpus: int) -> Finding:
    if not gpus:
        return ok("cores", f"{cpus}: as many ranks compute concurrently, with OMP_NUM_THREADS=1")
    count = f"{cpus} for {gpus} GPUs"
    if cpus < FEW_CPUS * gpus:
        return warning(
            "cores",
            f"{count}: steps will wait for loaders",
            "use nodes with more cores, or decode the data in advance",
        )
    return ok("cores", f"{count}: up to {cpus // gpus - 1} loader workers for each rank")


def _rated(about: str, where: str, work: Callable[[], None], size_bytes: int) -> Finding:
    began_s = time.monotonic()
    try:
        work()
    except (OSError, ValueError) as error:
        return warning(about, f"{where}: not measured: {error}", "see the finding above, if any")
    per_s = size_bytes / max(1e-9, time.monotonic() - began_s)
    result = f"{where}: {per_s / 1e6:,.0f} MB/s over {size_bytes / 1e6:,.0f} MB"
    if about != "loopback" and per_s < SLOW_BYTES_PER_S:
        minutes = 10e9 / per_s / 60
        return warning(about, f"{result}: a checkpoint of 10 GB takes {minutes:,.0f} min", "use a faster one, or save less often")  # fmt: skip
    return ok(about, result)


def _write(folder: Path, size_bytes: int) -> None:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    with TemporaryFile(dir=there) as file:
        for _ in range(size_bytes // len(_CHUNK)):
            file.write(_CHUNK)
        file.flush()
        os.fsync(file.fileno())


def _send(size_bytes: int) -> None:
    """Send data over TCP, as gloo does between ranks of one machine."""
    with socket.create_server((_LOOPBACK, 0)) as server:
        taker = threading.Thread(target=_drain, args=(server,))
        taker.start()
        with socket.create_connection(server.getsockname()) as road:
            for _ in range(size_bytes // len(_CHUNK)):
                road.sendall(_CHUNK)
        taker.join()


def _drain(server: socket.socket) -> None:
    road, _ = server.accept()
    with road:
        while road.recv(len(_CHUNK)):
            pass


def _write_object(store: str, size_bytes: int) -> None:
    """Write and delete one object in a single stream.

    A worker uses several streams and is faster if the store allows it.
    """
    if store.startswith("file://"):
        _write(Path(store.removeprefix("file://")), size_bytes)
        return
    name = f"doctor-{secrets.token_hex(8)}"
    if not store.startswith("s3://"):
        _write_cloud_object(store, name, size_bytes)
        return
    from holdfast.storage.s3_session import S3_ERRORS, open_client  # noqa: PLC0415 - only this check needs boto3

    bucket, _, prefix = store.removeprefix("s3://").partition("/")
    key = "/".join(filter(None, (prefix.strip("/"), name)))
    client = open_client()
    try:
        client.put_object(Bucket=bucket, Key=key, Body=bytes(size_bytes))
        client.delete_object(Bucket=bucket, Key=key)
    except S3_ERRORS as error:
        raise OSError(str(error)) from error


def _write_cloud_object(store: str, name: str, size_bytes: int) -> None:
    from holdfast.storage.cloud import CloudProbe  # noqa: PLC0415 - only this check needs obstore

    try:
        probe = CloudProbe(store, name)
        probe.put(bytes(size_bytes))
        probe.delete()
    except (CheckpointStoreRefused, CheckpointStoreUnreachable) as error:
        raise OSError(error.detail) from error
