"""A thousand workers in one process: `python -m ingest.load < LOAD.json`, with JSON output.

It implements HTTP itself: a client library would need more CPU time than the measured service.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

AT = "2026-03-01T12:00:00+00:00"
SIZES = (1, 1, 1, 1, 1, 1, 1, 1, 0, 10)
"""Points of successive deliveries: mostly those of a second, sometimes none or a backlog."""

WARM_UP_S = 2.0
"""Unmeasured start of a paced load, in which a new service creates its first query plans."""


@dataclass
class Worker:
    """One worker and its connection."""

    port: int
    job: str
    token: str
    incarnation: str | None
    sent: int = 0
    """Number of deliveries."""
    n: int = 0
    """Number of the last sent report."""

    async def connect(self) -> None:
        """Open the connection."""
        self._in, self._out = await asyncio.open_connection("127.0.0.1", self.port)

    async def deliver(self) -> float:
        """Send one delivery and return the seconds until its response.

        Raises:
            RuntimeError: it was not accepted.
        """
        count = SIZES[(self.sent + hash(self.job)) % len(SIZES)]
        reports = [
            {
                "n": self.n + i,
                "at": AT,
                "kind": "progress",
                "body": {
                    "step": 10 * (self.n + i),
                    "values": {"loss": 2.71828, "lr": 3e-4, "samples_per_s": 812.5},
                },
            }
            for i in range(1, count + 1)
        ]
        body: dict[str, Any] = {"attempt": 1, "reports": reports}
        if self.incarnation:
            body["incarnation"] = self.incarnation
        begun_s = time.perf_counter()
        answer = await self._post(json.dumps(body, separators=(",", ":")).encode())
        took_s = time.perf_counter() - begun_s
        self.sent += 1
        self.n += count
        if count and answer["next"] != self.n + 1:
            raise RuntimeError(f"{self.job} sent {self.n} reports and received {answer}")
        return took_s

    async def _post(self, body: bytes) -> dict[str, Any]:
        self._out.write(
            f"POST /v1/jobs/{self.job}/reports HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._in.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        content = await self._in.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:30]!r} {content[:300]!r}")
        answer: dict[str, Any] = json.loads(content)
        return answer


async def paced(workers: list[Worker], seconds: float, every_s: float) -> list[float]:
    """Durations of deliveries at one per second and worker, counted from when each was due."""
    took: list[float] = []
    counts_s = time.perf_counter() + WARM_UP_S
    end_s = time.perf_counter() + seconds

    async def deliver_repeatedly(worker: Worker) -> None:
        due_s = time.perf_counter() + random.random() * every_s
        while due_s < end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await worker.deliver()
            if due_s >= counts_s:
                took.append(time.perf_counter() - due_s)
            due_s += every_s

    await asyncio.gather(*map(deliver_repeatedly, workers))
    return took


async def pressed(workers: list[Worker], seconds: float, at_once: int) -> list[float]:
    """Durations of deliveries by workers that send as soon as they are answered."""
    took: list[float] = []
    end_s = time.perf_counter() + seconds

    async def deliver_repeatedly(mine: list[Worker]) -> None:
        while True:
            for worker in mine:
                if time.perf_counter() >= end_s:
                    return
                took.append(await worker.deliver())

    await asyncio.gather(*(deliver_repeatedly(workers[i::at_once]) for i in range(at_once)))
    return took


async def run(load_spec: dict[str, Any]) -> dict[str, Any]:
    """Run the load and return the results."""
    workers = [Worker(load_spec["port"], **each) for each in load_spec["workers"]]
    for worker in workers:
        await worker.connect()
    before = sum(worker.sent for worker in workers)
    begun_s = time.perf_counter()
    if load_spec["course"] == "paced":
        took = await paced(workers, load_spec["seconds"], every_s=1.0)
    else:
        took = await pressed(workers, load_spec["seconds"], at_once=64)
    sent = [{"job": w.job, "sent": w.sent, "n": w.n} for w in workers]
    return {
        "took_s": took,
        "wall_s": time.perf_counter() - begun_s,
        "sent": sent,
        "requests": sum(w.sent for w in workers) - before,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(run(json.load(sys.stdin))), sys.stdout)
