"""The bond: connections between the wrappers of a run, so that what happens on one node is known on all of them.

The first node listens, the others connect to it, and again if a connection breaks. Both sides send lines of JSON. The
bond carries them and knows nothing of what they mean. It has a thread of its own, in which nothing ever blocks, so that a
wrapper that is busy is not taken for one that is gone. Standard library only.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from holdfast_worker.console import log_info
from holdfast_worker.protocol.reports import Json

LEADER: Final = 0
"""The node that listens."""
PORTS: Final = 4
"""Tried one after the other. More waste time where all are blocked, fewer find all of them taken on a busy machine."""
LONGEST_LINE: Final = 256 * 1024
"""In bytes. Smaller refuses what a node with many ranks has found out, larger lets a stranger hold our memory."""
MOST_UNSENT: Final = 1024 * 1024
"""Bytes that wait for a node that does not read. More holds memory for one that hangs, less drops one that is slow."""
MOST_STRANGERS: Final = 16
"""Connections of whom nothing is known yet, beside those of all nodes. The same prices as a line."""
PULSE_S: Final = 2.0
"""Between two lines at least, so that silence means something. Longer is slow to notice, shorter is traffic."""
SILENCE_S: Final = 60.0
"""After which a node is given up that is still connected. Longer pays for nodes that wait for one whose machine is gone;
shorter gives up one that is only paused, as for a move to another host."""
GREETING_S: Final = 5.0
"""For a connection, and for its first line. Longer and strangers take the places of nodes, shorter fails over a slow link."""
RETRY_S: Final = 1.0
"""Between two rounds of tries to connect. Longer finds a node late, shorter is traffic about nothing."""
PATIENCE_S: Final = 120.0
"""Before it is said that there is no bond. Longer says it late, shorter complains of nodes that start at their own pace."""
FLUSH_S: Final = 2.0
"""At the end, for what was said to get out. Longer holds a node, shorter loses the last words."""


@dataclass(frozen=True, slots=True)
class Received:
    """A node says something."""

    node: int
    words: Mapping[str, Json]
    at_s: float = field(default=0.0, compare=False)
    """When, in the time of `time.monotonic`: whoever it is for may be busy for a while."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A node is connected from now on."""

    node: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A node is not connected any more."""

    node: int


News: TypeAlias = Received | Connected | Disconnected


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Where the nodes of a run meet, and by what they know each other."""

    node: int
    nodes: int
    address: str
    """Of the first node."""
    ports: Sequence[int]
    """To be tried in this order."""
    name: str
    """The same on all nodes of this run, and on no others."""


class NodeChannel:
    """One node's end. Nothing that goes wrong here is a reason to end a training: without a bond there is only less news."""

    def __init__(self, meeting: ChannelAddress, patience_s: float = PATIENCE_S) -> None:
        self._at = meeting
        self._patience_s = patience_s
        self._news = SimpleQueue[News]()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._guests: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-bond", daemon=True)
        self._is_open = threading.Event()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Be connected until the end, and then until what was said is sent, or cannot be."""
        self._thread.start()
        self._is_open.wait()
        try:
            yield
        finally:
            assert self._loop, "it was opened"
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def say(self, words: Mapping[str, Json]) -> None:
        """Send this to all who are connected: to the first node, or from it to all others."""
        assert self._loop, "only who is there can speak"
        line = f"{json.dumps(words, separators=(',', ':'))}\n".encode()
        self._loop.call_soon_threadsafe(self._send, line)

    def heard(self) -> Iterator[News]:
        """What has come since the last time, in order."""
        with suppress(Empty):
            while True:
                yield self._news.get_nowait()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        work = [
            asyncio.create_task(self._listen() if self._at.node == LEADER else self._seek()),
            asyncio.create_task(self._beat()),
        ]
        self._is_open.set()
        await self._closing.wait()
        for task in work:
            task.cancel()
        for writer in self._writers.values():
            writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(
                    *(writer.wait_closed() for writer in self._writers.values()),
                    return_exceptions=True,
                )
        for guest in self._guests:
            guest.cancel()
        await asyncio.gather(*work, *self._guests, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            self._send(b"{}\n")
            await asyncio.sleep(PULSE_S)

    def _send(self, line: bytes) -> None:
        for writer in self._writers.values():
            if writer.transport.get_write_buffer_size() > MOST_UNSENT:
                writer.transport.abort()
            elif not writer.is_closing():
                writer.write(line)

    async def _listen(self) -> None:
        server = await self._bind()
        if server is None:
            log_info(
                f"no port of {self._at.ports[0]} to {self._at.ports[-1]} is free: "
                "what happens on one node will be noticed later on the others"
            )
            return
        async with server:
            await server.serve_forever()

    async def _bind(self) -> asyncio.Server | None:
        for port in self._at.ports:
            # The address by which others know this node may be none of its own.
            for host in (self._at.address, None):
                try:
                    return await asyncio.start_server(self._welcome, host, port, limit=LONGEST_LINE)
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL and not isinstance(
                        error, socket.gaierror
                    ):
                        break
        return None

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._guests) >= self._at.nodes + MOST_STRANGERS:
            writer.transport.abort()
            return
        guest = asyncio.create_task(self._entertain(reader, writer))
        self._guests.add(guest)
        guest.add_done_callback(self._guests.discard)

    async def _entertain(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear a guest out who belongs to this run; whoever else came is sent away without a word."""
        try:
            async with asyncio.timeout(GREETING_S):
                greeting = parse(await reader.readline())
            node = greeting.get("node")
            if (
                greeting.get("bond") != self._at.name
                or not isinstance(node, int)
                or not LEADER < node < self._at.nodes
            ):
                return
            writer.write(_greeting(self._at))
            await self._converse(node, reader, writer)
        except (OSError, ValueError):
            return
        finally:
            writer.close()

    async def _seek(self) -> None:
        """Look for the first node, for ever."""
        is_late = asyncio.get_running_loop().call_later(self._patience_s, self._complain)
        while True:
            for port in self._at.ports:
                await self._try(port, is_late)
            await asyncio.sleep(RETRY_S)

    async def _try(self, port: int, is_late: asyncio.TimerHandle) -> None:
        """Talk to the first node for as long as it is there, if it is."""
        try:
            async with asyncio.timeout(GREETING_S):
                reader, writer = await asyncio.open_connection(
                    self._at.address, port, limit=LONGEST_LINE
                )
        except (OSError, ValueError):
            return
        try:
            writer.write(_greeting(self._at))
            async with asyncio.timeout(GREETING_S):
                answer = parse(await reader.readline())
            if answer.get("bond") != self._at.name or answer.get("node") != LEADER:
                return
            is_late.cancel()
            await self._converse(LEADER, reader, writer)
        except (OSError, ValueError):
            return
        finally:
            writer.close()

    def _complain(self) -> None:
        log_info(
            f"the first node does not answer at {self._at.address}, ports {self._at.ports[0]} to {self._at.ports[-1]}: "
            "what happens on one node will be noticed later on the others"
        )

    async def _converse(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Hear what a node says, until it is gone or makes no sense."""
        former = self._writers.get(node)
        if former:
            former.transport.abort()
        self._writers[node] = writer
        self._news.put(Connected(node))
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    line = await reader.readline()
                if not line:
                    return
                if words := parse(line):
                    self._news.put(Received(node, words, time.monotonic()))
        except (OSError, ValueError):
            return
        finally:
            if self._writers.get(node) is writer:
                del self._writers[node]
                self._news.put(Disconnected(node))


def parse(line: bytes) -> dict[str, Json]:
    """The object that a whole line is.

    Raises:
        ValueError: it is none, or not whole.
    """
    if not line.endswith(b"\n"):
        raise ValueError("a line that is cut off")
    try:
        words = json.loads(line)
    except RecursionError as error:
        raise ValueError("a line that is nested too deeply") from error
    if not isinstance(words, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a line of a stranger, not a bug of ours
    return words


def _greeting(at: ChannelAddress) -> bytes:
    return f"{json.dumps({'bond': at.name, 'node': at.node})}\n".encode()
