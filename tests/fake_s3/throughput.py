"""Throughput of the fake S3, as ratios to plain socket loops in the same run.

PYTHONPATH=tests python -m fake_s3.throughput [--rounds 3] [--connections 16] [--size-mib 1024] [--part-mib 16]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from fake_s3.handle import FakeS3, in_process

BUCKET = "throughput"


@dataclass
class ThroughputRun:
    """Parameters and results: gigabytes per second, and CPU seconds of the server per gigabyte."""

    size_bytes: int
    part_bytes: int
    connections: int
    rates: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        return self.size_bytes // self.part_bytes

    def measure(self, name: str, cpu_s: Callable[[], float], run: Callable[[], None]) -> None:
        """Run once and record the result."""
        before_s, began_s = cpu_s(), time.monotonic()
        run()
        gigabytes = self.parts * self.part_bytes / 1e9
        rate = gigabytes / (time.monotonic() - began_s)
        self.rates.setdefault(name, []).append((rate, (cpu_s() - before_s) / gigabytes))

    def transfer_all(self, port: int, transfer: Callable[[socket.socket, int], None]) -> None:
        """Transfer all parts, distributed over the connections."""

        def run_connection(first: int) -> None:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                for part in range(first, self.parts, self.connections):
                    transfer(connection, part)

        with ThreadPoolExecutor(self.connections) as pool:
            list(pool.map(run_connection, range(self.connections)))


def put(benchmark: ThroughputRun, port: int, data: memoryview) -> None:
    """Send all parts as plain PUTs over raw sockets."""

    def transfer(connection: socket.socket, part: int) -> None:
        connection.sendall(b"PUT /%b/%d HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BUCKET.encode(), part, len(data)))  # fmt: skip
        connection.sendall(data)
        reply = connection.recv(4096)
        assert reply.startswith(b"HTTP/1.1 200"), reply

    benchmark.transfer_all(port, transfer)


def get(benchmark: ThroughputRun, port: int, scratch: memoryview) -> None:
    """Read all parts by GETs over raw sockets, into the same memory."""

    def transfer(connection: socket.socket, part: int) -> None:
        connection.sendall(b"GET /%b/%d HTTP/1.1\r\n\r\n" % (BUCKET.encode(), part))
        reply = connection.recv(4096)
        take(connection, scratch[len(reply.partition(b"\r\n\r\n")[2]) :])

    benchmark.transfer_all(port, transfer)


def take(connection: socket.socket, view: memoryview) -> None:
    """Receive until `view` is full."""
    left = len(view)
    while left:
        left -= connection.recv_into(view[:left], 0, socket.MSG_WAITALL)


def obstore_put(benchmark: ThroughputRun, s3: FakeS3, data: memoryview) -> None:
    """Send all parts as PUTs by obstore, from threads."""
    import obstore
    from obstore.store import S3Store

    store: Any = S3Store(
        BUCKET,
        endpoint=s3.endpoint,
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        unsigned_payload=True,
        client_options={"allow_http": True},
    )
    with ThreadPoolExecutor(benchmark.connections) as pool:
        list(pool.map(lambda part: obstore.put(store, f"{part}", data, use_multipart=False), range(benchmark.parts)))  # fmt: skip


def serve_baseline(pipe: Connection, connections: int, part_bytes: int) -> None:
    """Serve plain loops that receive or send parts, each on its own port, and report CPU time."""

    def receive(connection: socket.socket, view: memoryview) -> None:
        with connection:
            while connection.recv_into(view, 0, socket.MSG_WAITALL) == part_bytes:
                connection.sendall(b"1")

    def send(connection: socket.socket, view: memoryview) -> None:
        with connection:
            while connection.recv(1):
                connection.sendall(view)

    def accept(listener: socket.socket, serve: Callable[[socket.socket, memoryview], None]) -> None:
        while True:
            for view in memory:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection, view), daemon=True).start()

    memory = [memoryview(bytearray(b"1") * part_bytes) for _ in range(connections)]
    for serve in (receive, send):
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        pipe.send(listener.getsockname()[1])
        threading.Thread(target=accept, args=(listener, serve), daemon=True).start()
    while pipe.recv():
        pipe.send(time.process_time())


def main() -> None:
    """Measure all rounds and print the results."""
    parser = argparse.ArgumentParser(prog="python -m fake_s3.throughput", description=__doc__)
    for name, default in (("rounds", 3), ("connections", 16), ("size-mib", 1024), ("part-mib", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    benchmark = ThroughputRun(args.size_mib << 20, args.part_mib << 20, args.connections)
    data = memoryview(os.urandom(1 << 20) * args.part_mib)

    parent_pipe, child_pipe = multiprocessing.Pipe()
    loop = multiprocessing.get_context("spawn").Process(
        target=serve_baseline,
        args=(child_pipe, args.connections, benchmark.part_bytes),
        daemon=True,
    )
    loop.start()
    in_port, out_port = parent_pipe.recv(), parent_pipe.recv()

    def loop_cpu_s() -> float:
        parent_pipe.send(True)
        return float(parent_pipe.recv())

    def send(connection: socket.socket, _part: int) -> None:
        connection.sendall(data)
        assert connection.recv(1)

    scratch = memoryview(bytearray(len(data)))

    def fetch(connection: socket.socket, _part: int) -> None:
        connection.sendall(b"1")
        take(connection, scratch)

    with in_process() as s3:
        s3.reserve(benchmark.parts, benchmark.part_bytes)
        for _ in range(args.rounds):
            benchmark.measure(
                "plain loop, in", loop_cpu_s, lambda: benchmark.transfer_all(in_port, send)
            )
            benchmark.measure(
                "plain loop, out", loop_cpu_s, lambda: benchmark.transfer_all(out_port, fetch)
            )
            s3.set(null=True)
            benchmark.measure("PUT, discarded", s3.cpu_s, lambda: put(benchmark, s3.port, data))
            s3.set(null=False)
            benchmark.measure("PUT, stored", s3.cpu_s, lambda: put(benchmark, s3.port, data))
            benchmark.measure("GET", s3.cpu_s, lambda: get(benchmark, s3.port, scratch))
            try:
                benchmark.measure("PUT by obstore", s3.cpu_s, lambda: obstore_put(benchmark, s3, data))  # fmt: skip
            except ImportError:
                print("obstore is not installed, and not measured")
    parent_pipe.send(False)
    loop.join()
    print(f"{args.size_mib} MiB in {args.part_mib} MiB parts on {args.connections} connections, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for name, rates in benchmark.rates.items():
        best, middle = max(rates)[0], statistics.median(rate for rate, _ in rates)
        cpu_s = statistics.median(cpu_s for _, cpu_s in rates)
        print(f"{name:18} median {middle:5.2f} GB/s, best {best:5.2f}; server {cpu_s:.2f} CPU-s per GB")  # fmt: skip


if __name__ == "__main__":
    main()
