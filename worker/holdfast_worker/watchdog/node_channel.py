"""Channel between the wrappers of a run, which makes a failure known on all nodes.

Node 0 listens, the others connect to it and reconnect if a connection breaks. Both sides send lines of JSON, whose
meaning `messages` defines. The channel has its own thread without blocking calls, so that a busy wrapper does not look
lost. Standard library only.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from holdfast_worker.config import Config
from holdfast_worker.console import log_info
from holdfast_worker.protocol.reports import Json
from holdfast_worker.topology.nodes import Topology
from holdfast_worker.watchdog.hosting import STARTS_PER_NODE
from holdfast_worker.watchdog.messages import POSITIONS, READY

LEADER: Final = 0
"""The node that listens."""
PORT_COUNT: Final = 4
"""Ports that are tried in order.
A lower value may find all in use on a busy machine; a higher value wastes time if all are blocked."""
MAX_LINE_BYTES: Final = 256 * 1024
"""Size of a line.
A lower value rejects inspections of a node with many ranks; a higher value lets strangers fill memory."""
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Bytes that wait for a node that does not read.
A lower value drops a slow node; a higher value holds memory for a hung one."""
MAX_UNIDENTIFIED: Final = 16
"""Connections before their handshake, in addition to those of all nodes.
A lower value may reject nodes; a higher value lets strangers fill memory."""
KEEPALIVE_S: Final = 2.0
"""Interval of keepalive lines.
A lower value adds traffic; a higher value detects a lost node later."""
IDLE_TIMEOUT_S: Final = 60.0
"""Time without a line after which a connected node counts as lost.
A lower value drops a node that is paused, as for a live migration; a higher value pays for nodes that wait for a lost one."""
HANDSHAKE_TIMEOUT_S: Final = 5.0
"""Timeout of a connection and of its first line.
A lower value fails on a slow network; a higher value lets strangers block connections of nodes."""
STANDBY_POLL_S: Final = 0.05
"""Interval at which a replacement on standby is looked at.
A lower value burns a core; a higher value delays it after its predecessor is lost."""
RETRY_S: Final = 1.0
"""Pause between rounds of connection attempts.
A lower value adds traffic; a higher value finds a node later."""
UNREACHABLE_WARNING_S: Final = 120.0
"""Time before a missing connection is logged.
A lower value warns about nodes that start slowly; a higher value warns late."""
FLUSH_TIMEOUT_S: Final = 2.0
"""Time to flush messages at the end.
A lower value loses the last ones; a higher value pays for the node."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a node."""

    node: int
    body: Mapping[str, Json]
    at_s: float = field(default=0.0, compare=False)
    """Arrival by `time.monotonic`, as the receiver may handle it later."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A node has connected."""

    node: int
    start: int = 0
    """Number of the node's start; see `hosting`."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A node has disconnected."""

    node: int


@dataclass(frozen=True, slots=True)
class ReadyOnStandby:
    """The ranks of a replacement that waits are ready to take over."""

    node: int
    is_ready: bool = True
    """False: the replacement has disconnected."""


ChannelEvent: TypeAlias = Received | Connected | Disconnected | ReadyOnStandby


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Address of the channel of a run, and the name by which its nodes recognize each other."""

    node: int
    nodes: int
    address: str
    """Address of node 0; empty on node 0 if it listens on all of its addresses."""
    ports: Sequence[int]
    """Ports to try, in this order."""
    name: str
    """Secret name, the same on all nodes of this run."""
    restarts: int | None = 0
    """How often the ranks of all nodes have started again. None on a node that replaces another: node 0 knows it."""
    start: int = 0
    """Number of this node's start; see `hosting`. Node 0 accepts only the newest."""

    @classmethod
    def of_node(cls, topology: Topology, config: Config, restarts: int | None) -> ChannelAddress:
        """Address of the channel of a run, beside its rendezvous.

        The name contains the token as a secret. Nodes of several groups may know node 0 by different addresses.
        """
        at = topology
        run = (config.job, config.attempt, config.token)
        meeting = at.leader if at.group else at.master_address
        secret = (*run, meeting, at.master_port, at.nodes)
        return cls(
            node=at.node_rank,
            nodes=at.nodes,
            address="" if at.group and at.node_rank == LEADER else at.master_address,
            ports=channel_ports(at.master_port),
            name=hashlib.sha256(json.dumps(secret).encode()).hexdigest(),
            restarts=restarts,
            start=config.hosted_start or (config.node_start or 0) * STARTS_PER_NODE,
        )


def channel_ports(master_port: int) -> list[int]:
    """Ports of the channel beside that of the rendezvous, in the order of tries."""
    above = master_port + PORT_COUNT < 1 << 16
    return [master_port + (1 if above else -1) * (i + 1) for i in range(PORT_COUNT)]


class NodeChannel:
    """One node's end of the channel. Its errors never end training, which only loses messages."""

    def __init__(
        self,
        address: ChannelAddress,
        warn_after_s: float = UNREACHABLE_WARNING_S,
        *,
        held: Mapping[int, int] | None = None,
        starts: dict[int, int] | None = None,
    ) -> None:
        """`held`: see `hold`.

        `starts`: the newest start of each node, which the channel keeps up to date.
        """
        self._address = address
        self._warn_after_s = warn_after_s
        self._events = SimpleQueue[ChannelEvent]()
        self._has_news = threading.Event()
        """Set with each event but positions, which are frequent with many nodes and are not urgent."""
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-channel", daemon=True)
        self._is_open = threading.Event()
        self._starts = {} if starts is None else starts
        self._announced = b""
        self._held = held or {}
        self._standby: set[asyncio.StreamWriter] = set()
        """Connections of such replacements."""
        self.restarts = address.restarts or 0
        """How often the ranks of all nodes have started again, as node 0 counts."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Run the channel, and flush its messages on exit."""
        self._thread.start()
        self._is_open.wait()
        try:
            yield
        finally:
            assert self._loop, "the channel is open"
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def send(self, body: Mapping[str, Json], *, to_standby: bool = False) -> None:
        """Send a message to all connected nodes: to node 0, or from node 0 to all others.

        `to_standby`: also to replacements that wait.
        """
        assert self._loop, "the channel is open"
        self._loop.call_soon_threadsafe(self._broadcast, _encode_line(body), to_standby)

    def announce(self, body: Mapping[str, Json]) -> None:
        """Send a message to all nodes, as node 0; those that connect later receive it first."""
        self._announced = _encode_line(body)
        self.send(body, to_standby=True)

    def hold(self, starts: Mapping[int, int]) -> None:
        """Have later starts of nodes wait, because their ranks run elsewhere. Thread-safe."""
        self._held = starts

    def receive(self) -> Iterator[ChannelEvent]:
        """Events since the last call, in order."""
        with suppress(Empty):
            while True:
                yield self._events.get_nowait()

    def wait(self, timeout_s: float) -> bool:
        """Wait for an event other than positions, since the last call; return whether there is one."""
        has_news = self._has_news.wait(timeout_s)
        self._has_news.clear()
        return has_news

    def _put(self, event: ChannelEvent) -> None:
        self._events.put(event)
        if not (isinstance(event, Received) and POSITIONS in event.body):
            self._has_news.set()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        work = [
            asyncio.create_task(
                self._listen() if self._address.node == LEADER else self._connect()
            ),
            asyncio.create_task(self._send_keepalives()),
        ]
        self._is_open.set()
        await self._closing.wait()
        for task in work:
            task.cancel()
        for writer in self._writers.values():
            writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await asyncio.gather(
                    *(writer.wait_closed() for writer in self._writers.values()),
                    return_exceptions=True,
                )
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*work, *self._connections, return_exceptions=True)

    async def _send_keepalives(self) -> None:
        while True:
            self._broadcast(b"{}\n", to_standby=True)
            await asyncio.sleep(KEEPALIVE_S)

    def _broadcast(self, line: bytes, to_standby: bool) -> None:
        for writer in (*self._writers.values(), *(self._standby if to_standby else ())):
            if writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                writer.transport.abort()
            elif not writer.is_closing():
                writer.write(line)

    async def _listen(self) -> None:
        server = await self._bind()
        if server is None:
            log_info(
                f"the ports {self._address.ports[0]} to {self._address.ports[-1]} are in use: "
                "failures on one node will be noticed later on the others"
            )
            return
        async with server:
            await server.serve_forever()

    async def _bind(self) -> asyncio.Server | None:
        for port in self._address.ports:
            # The address that other nodes use may not be an address of this machine.
            for host in (self._address.address or None, None):
                try:
                    return await asyncio.start_server(
                        self._accept, host, port, limit=MAX_LINE_BYTES
                    )
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL and not isinstance(
                        error, socket.gaierror
                    ):
                        break
        return None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._address.nodes + MAX_UNIDENTIFIED:
            writer.transport.abort()
            return
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        # A task that is cancelled before it begins does not close it.
        connection.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a node of this run; any other connection is closed without a reply."""
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                greeting = parse_line(await reader.readline())
            node, start = greeting.get("node"), greeting.get("start", 0)
            if (
                greeting.get("bond") != self._address.name
                or greeting.get("restarts") not in {None, self.restarts}
                or not isinstance(node, int)
                or not LEADER < node < self._address.nodes
                # A node that was replaced must not take the place of its successor.
                or not isinstance(start, int)
                or start < self._starts.get(node, 0)
            ):
                return
            writer.write(_handshake(self._address) + self._announced)
            if not await self._wait_on_standby(node, reader, writer, start):
                return
            self._starts[node] = start
            await self._read_messages(node, reader, writer, start)
        except (OSError, ValueError):
            return

    async def _wait_on_standby(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: int
    ) -> bool:
        """Wait until a replacement may take over, if its predecessor's ranks run elsewhere.

        Return False if it is lost before.
        """
        self._standby.add(writer)
        heard_s, is_ready, may_take_over = time.monotonic(), False, False
        try:
            while start > self._held.get(node, start):
                with suppress(TimeoutError):
                    async with asyncio.timeout(STANDBY_POLL_S):
                        line = await reader.readline()
                    heard_s = time.monotonic()
                    if parse_line(line).get(READY) is True and not is_ready:
                        is_ready = True
                        self._put(ReadyOnStandby(node))
                if time.monotonic() - heard_s > IDLE_TIMEOUT_S:
                    return False
            may_take_over = True
        finally:
            self._standby.discard(writer)
            if is_ready and not may_take_over:
                self._put(ReadyOnStandby(node, is_ready=False))
        return start >= self._starts.get(node, 0)

    async def _connect(self) -> None:
        """Connect to node 0, with retries until the end."""
        is_late = asyncio.get_running_loop().call_later(self._warn_after_s, self._warn_unreachable)
        while True:
            for port in self._address.ports:
                await self._try_port(port, is_late)
            await asyncio.sleep(RETRY_S)

    async def _try_port(self, port: int, is_late: asyncio.TimerHandle) -> None:
        """Connect to node 0 at a port, and read messages until the connection ends."""
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    self._address.address, port, limit=MAX_LINE_BYTES
                )
        except (OSError, ValueError):
            return
        try:
            writer.write(_handshake(self._address))
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                answer = parse_line(await reader.readline())
            restarts = answer.get("restarts")
            if (
                answer.get("bond") != self._address.name
                or answer.get("node") != LEADER
                or not isinstance(restarts, int)
            ):
                return
            self.restarts = restarts
            is_late.cancel()
            await self._read_messages(LEADER, reader, writer)
        except (OSError, ValueError):
            return
        finally:
            writer.close()

    def _warn_unreachable(self) -> None:
        log_info(
            f"node 0 is unreachable at {self._address.address}, ports {self._address.ports[0]} to {self._address.ports[-1]}: "
            "failures on one node will be noticed later on the others"
        )

    async def _read_messages(
        self,
        node: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        start: int = 0,
    ) -> None:
        """Read messages of a node until it disconnects or sends a malformed line."""
        former = self._writers.get(node)
        if former:
            former.transport.abort()
        self._writers[node] = writer
        self._put(Connected(node, start))
        try:
            while True:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    line = await reader.readline()
                if not line or self._writers.get(node) is not writer:
                    return
                if body := parse_line(line):
                    self._put(Received(node, body, time.monotonic()))
        except (OSError, ValueError):
            return
        finally:
            if self._writers.get(node) is writer:
                del self._writers[node]
                self._put(Disconnected(node))


def _encode_line(body: Mapping[str, Json]) -> bytes:
    return f"{json.dumps(body, separators=(',', ':'))}\n".encode()


def parse_line(line: bytes) -> dict[str, Json]:
    """Parse a whole line as a JSON object.

    Raises:
        ValueError: the line is incomplete or not an object.
    """
    if not line.endswith(b"\n"):
        raise ValueError("the line is incomplete")
    try:
        body = json.loads(line)
    except RecursionError as error:
        raise ValueError("the line is nested too deeply") from error
    if not isinstance(body, dict):
        raise ValueError("not an object")  # noqa: TRY004 - input from the network, not a type error
    return body


def _handshake(address: ChannelAddress) -> bytes:
    greeting = {
        "bond": address.name,
        "node": address.node,
        "restarts": address.restarts,
        "start": address.start,
    }
    return f"{json.dumps(greeting)}\n".encode()
