"""Reads of SkyPilot that serve all callers that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.cached_reads import SharedRead
from holdfast.launchers.skypilot.orphans import Clusters
from support.skypilot.launcher import NAMES

if TYPE_CHECKING:
    from holdfast.launchers.skypilot.api_client import SkyPilotClient

T = TypeVar("T")


class SlowServer:
    """A server that answers a read once that is allowed; results are numbers from 1."""

    def __init__(self) -> None:
        self.reads = 0
        self.is_silent = False
        self.may_answer = asyncio.Event()

    async def read_number(self) -> int:
        self.reads += 1
        number = self.reads
        await self.may_answer.wait()
        if self.is_silent:
            raise LauncherUnreachable(f"no response to read {number}")
        return number

    async def read(self, _path: str, _query: dict[str, Any]) -> list[dict[str, Any]]:
        await self.read_number()
        return []


async def started(*calls: Coroutine[Any, Any, T]) -> list[asyncio.Task[T]]:
    """Start calls; each has run until it waits."""
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    return tasks


def test_callers_that_wait_share_one_read() -> None:
    server = SlowServer()

    async def ask() -> list[int]:
        shared = SharedRead(server.read_number)
        # The read of the first may lack what the others ask for, so that they share the next one.
        first = await started(shared.get())
        others = await started(*(shared.get() for _ in range(100)))
        server.may_answer.set()
        return [*await asyncio.gather(*first, *others), await shared.get()]

    assert asyncio.run(ask()) == [1, *[2] * 100, 3]


def test_callers_that_wait_share_a_failure() -> None:
    server = SlowServer()
    server.is_silent = True

    async def ask() -> tuple[list[int | BaseException], int]:
        shared = SharedRead(server.read_number)
        first = await started(shared.get())
        others = await started(*(shared.get() for _ in range(100)))
        server.may_answer.set()
        failed = await asyncio.gather(*first, *others, return_exceptions=True)
        server.is_silent = False
        return failed, await shared.get()

    failed, after = asyncio.run(ask())

    assert [str(error) for error in failed] == [
        "no response to read 1",
        *["no response to read 2"] * 100,
    ]
    assert after == 3


def test_cancelled_caller_leaves_the_read_to_the_others() -> None:
    server = SlowServer()

    async def ask() -> int:
        shared = SharedRead(server.read_number)
        first, second = await started(*(shared.get() for _ in range(2)))
        first.cancel()
        server.may_answer.set()
        return await second

    assert asyncio.run(ask()) == 2


def test_launches_share_the_list_of_clusters() -> None:
    server = SlowServer()

    async def ask() -> None:
        clusters = Clusters(cast("SkyPilotClient", server), NAMES)
        calls = await started(*(clusters.list_running() for _ in range(100)))
        server.may_answer.set()
        await asyncio.gather(*calls)

    asyncio.run(ask())

    # The first caller's read had begun before the others asked.
    assert server.reads == 2
