"""How quick this machine is at what a training waits for: its disk, its store, its cores, the road between ranks.

What a loader does (`num_workers`, `pin_memory`) is in the script and cannot be seen from here; it is not guessed at.
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

SIZE_BYTES: Final = 64 * 1024 * 1024
"""What is written and sent. Smaller measures how quickly it begins; bigger makes people wait for a slow store."""
SLOW_BYTES_PER_S: Final = 50e6
"""Of a disk or a store: slower, and a checkpoint of 10 GB takes more than three minutes, longer than most notices of a spot node."""
FEW_CPUS: Final = 4
"""For each GPU: with fewer, whoever decodes data for it is slower than it is, most of the time."""
_PIECE: Final = bytes(1024 * 1024)
_LOOPBACK: Final = "127.0.0.1"


def measure_performance(
    folder: Path, store: str | None, gpus: int, size_bytes: int = SIZE_BYTES
) -> Iterator[Finding]:
    """What was measured in a folder, at a store if there is one, and on this machine, which has so many GPUs."""
    yield _cores(len(os.sched_getaffinity(0)), gpus)
    yield _rated("disk", f"{folder}", lambda: _write(folder, size_bytes), size_bytes)
    yield _rated("loopback", _LOOPBACK, lambda: _send(size_bytes), size_bytes)
    if store:
        yield _rated("store", store, lambda: _put(store, size_bytes), size_bytes)
    yield ok(
        "loader",
        "num_workers and pin_memory are in the script, and not seen from here: time the loop over the loader alone, and "
        "compare it with a step",
    )


def _cores(cpus: int, gpus: int) -> Finding:
    if not gpus:
        return ok("cores", f"{cpus}: as many ranks compute at once, with OMP_NUM_THREADS=1")
    told = f"{cpus} for {gpus} GPUs"
    if cpus < FEW_CPUS * gpus:
        return warning(
            "cores",
            f"{told}: loaders will be what steps wait for",
            "take nodes with more cores, or decode the data beforehand",
        )
    return ok("cores", f"{told}: up to {cpus // gpus - 1} loader workers for each rank")


def _rated(about: str, where: str, work: Callable[[], None], size_bytes: int) -> Finding:
    began_s = time.monotonic()
    try:
        work()
    except (OSError, ValueError) as error:
        return warning(about, f"{where}: not measured: {error}", "see the finding above, if any")
    per_s = size_bytes / max(1e-9, time.monotonic() - began_s)
    told = f"{where}: {per_s / 1e6:,.0f} MB/s over {size_bytes / 1e6:,.0f} MB"
    if about != "loopback" and per_s < SLOW_BYTES_PER_S:
        minutes = 10e9 / per_s / 60
        return warning(about, f"{told}: a checkpoint of 10 GB takes {minutes:,.0f} min", "take a quicker one, or save less often")  # fmt: skip
    return ok(about, told)


def _write(folder: Path, size_bytes: int) -> None:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    with TemporaryFile(dir=there) as file:
        for _ in range(size_bytes // len(_PIECE)):
            file.write(_PIECE)
        file.flush()
        os.fsync(file.fileno())


def _send(size_bytes: int) -> None:
    """Through the whole of TCP, as gloo does between ranks of one machine."""
    with socket.create_server((_LOOPBACK, 0)) as server:
        taker = threading.Thread(target=_take, args=(server,))
        taker.start()
        with socket.create_connection(server.getsockname()) as road:
            for _ in range(size_bytes // len(_PIECE)):
                road.sendall(_PIECE)
        taker.join()


def _take(server: socket.socket) -> None:
    road, _ = server.accept()
    with road:
        while road.recv(len(_PIECE)):
            pass


def _put(store: str, size_bytes: int) -> None:
    """Write and remove one object, in one stream: a worker uses several, and is quicker where the store allows it."""
    if store.startswith("file://"):
        _write(Path(store.removeprefix("file://")), size_bytes)
        return
    from holdfast.storage.s3_session import S3_ERRORS, open_client  # noqa: PLC0415 - only who asks needs boto3

    bucket, _, prefix = store.removeprefix("s3://").partition("/")
    key = "/".join(filter(None, (prefix.strip("/"), f"doctor-{secrets.token_hex(8)}")))
    client = open_client()
    try:
        client.put_object(Bucket=bucket, Key=key, Body=bytes(size_bytes))
        client.delete_object(Bucket=bucket, Key=key)
    except S3_ERRORS as error:
        raise OSError(str(error)) from error
