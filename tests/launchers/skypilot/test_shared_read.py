"""Reads of SkyPilot that serve all callers that wait for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.cached_reads import SharedRead
from holdfast.launchers.skypilot.orphans import Clusters
from support.skypilot.launcher import NAMES

if TYPE_CHECKING:
    from holdfast.launchers.skypilot.api_client import SkyPilotClient


class SlowServer:
    """A server that takes a moment for each read; results are numbers from 1."""

    def __init__(self) -> None:
        self.reads = 0
        self.is_silent = False

    async def read_number(self) -> int:
        self.reads += 1
        number = self.reads
        await asyncio.sleep(0.01)
        if self.is_silent:
            raise LauncherUnreachable(f"no response to read {number}")
        return number

    async def read(self, _path: str, _query: dict[str, Any]) -> list[dict[str, Any]]:
        await self.read_number()
        return []


def test_callers_that_wait_share_one_read() -> None:
    server = SlowServer()

    async def ask() -> list[int]:
        shared = SharedRead(server.read_number)
        first = asyncio.create_task(shared.get())
        await asyncio.sleep(0.005)
        # The read in progress may lack what these ask for, so that they share the next one.
        others = await asyncio.gather(*(shared.get() for _ in range(100)))
        return [await first, *others, await shared.get()]

    assert asyncio.run(ask()) == [1, *[2] * 100, 3]


def test_callers_that_wait_share_a_failure() -> None:
    server = SlowServer()
    server.is_silent = True

    async def ask() -> tuple[list[int | BaseException], int]:
        shared = SharedRead(server.read_number)
        first = asyncio.create_task(shared.get())
        await asyncio.sleep(0.005)
        others = asyncio.gather(*(shared.get() for _ in range(100)), return_exceptions=True)
        with pytest.raises(LauncherUnreachable, match="read 1"):
            await first
        failed = await others
        server.is_silent = False
        return failed, await shared.get()

    failed, after = asyncio.run(ask())

    assert {str(error) for error in failed} == {"no response to read 2"}
    assert after == 3


def test_cancelled_caller_leaves_the_read_to_the_others() -> None:
    server = SlowServer()

    async def ask() -> int:
        shared = SharedRead(server.read_number)
        first, second = (asyncio.create_task(shared.get()) for _ in range(2))
        await asyncio.sleep(0.005)
        first.cancel()
        return await second

    assert asyncio.run(ask()) == 2


def test_launches_share_the_list_of_clusters() -> None:
    server = SlowServer()

    async def ask() -> None:
        clusters = Clusters(cast("SkyPilotClient", server), NAMES)
        await asyncio.gather(*(clusters.list_running() for _ in range(100)))

    asyncio.run(ask())

    # The first caller's read may have begun before the others asked.
    assert server.reads == 2
