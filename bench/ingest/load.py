"""A thousand workers in one process. Run it as `python -m ingest.load < ORDER.json`; it prints what they saw as JSON.

It speaks HTTP by hand: a client library takes more of a core than the service that is to be measured.
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
"""Points in one delivery after the other: mostly what a second brings, now and then a question, or what had piled up."""

WARM_UP_S = 2.0
"""At the beginning of a paced course, of which no time is told: a service that has just started makes its first plans."""


@dataclass
class Worker:
    """One worker and its connection."""

    port: int
    job: str
    token: str
    incarnation: str | None
    sent: int = 0
    """Deliveries so far."""
    n: int = 0
    """The last report that it has told."""

    async def connect(self) -> None:
        """Open the connection on which all is said."""
        self._in, self._out = await asyncio.open_connection("127.0.0.1", self.port)

    async def deliver(self) -> float:
        """Seconds until one delivery was answered.

        Raises:
            RuntimeError: it was not taken.
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
            raise RuntimeError(f"{self.job} told {self.n} reports and was answered {answer}")
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
        told = await self._in.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:30]!r} {told[:300]!r}")
        answer: dict[str, Any] = json.loads(told)
        return answer


async def paced(workers: list[Worker], seconds: float, every_s: float) -> list[float]:
    """What each delivery took where all workers deliver at their own second, counted from when it was due."""
    took: list[float] = []
    counts_s = time.perf_counter() + WARM_UP_S
    end_s = time.perf_counter() + seconds

    async def go_on(worker: Worker) -> None:
        due_s = time.perf_counter() + random.random() * every_s
        while due_s < end_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await worker.deliver()
            if due_s >= counts_s:
                took.append(time.perf_counter() - due_s)
            due_s += every_s

    await asyncio.gather(*map(go_on, workers))
    return took


async def pressed(workers: list[Worker], seconds: float, at_once: int) -> list[float]:
    """What each delivery took where so many workers at once deliver again as soon as they are answered."""
    took: list[float] = []
    end_s = time.perf_counter() + seconds

    async def go_on(mine: list[Worker]) -> None:
        while True:
            for worker in mine:
                if time.perf_counter() >= end_s:
                    return
                took.append(await worker.deliver())

    await asyncio.gather(*(go_on(workers[i::at_once]) for i in range(at_once)))
    return took


async def run(order: dict[str, Any]) -> dict[str, Any]:
    """What was seen."""
    workers = [Worker(order["port"], **each) for each in order["workers"]]
    for worker in workers:
        await worker.connect()
    before = sum(worker.sent for worker in workers)
    begun_s = time.perf_counter()
    if order["course"] == "paced":
        took = await paced(workers, order["seconds"], every_s=1.0)
    else:
        took = await pressed(workers, order["seconds"], at_once=64)
    sent = [{"job": w.job, "sent": w.sent, "n": w.n} for w in workers]
    return {
        "took_s": took,
        "wall_s": time.perf_counter() - begun_s,
        "sent": sent,
        "requests": sum(w.sent for w in workers) - before,
    }


if __name__ == "__main__":
    json.dump(asyncio.run(run(json.load(sys.stdin))), sys.stdout)
