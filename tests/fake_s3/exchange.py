"""One request and its reply, with the faults that apply to them."""

from __future__ import annotations

from typing import Final

from fake_s3.clouds import refuse
from fake_s3.counters import InFlightRequest
from fake_s3.errors import Refusal
from fake_s3.faults import ArmedFault, TriggeredFaults, flip_bit, flipped
from fake_s3.memory import Blob, Body, within
from fake_s3.operations import execute
from fake_s3.reply import Reply, http_date
from fake_s3.request import Request
from fake_s3.state import ServerState
from fake_s3.wire import Chunked, ConnectionClosed, Plain, Source, Wire

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
TAIL_BYTES: Final = 16 << 10
"""Bytes of a reply that are sent after it was counted; they fit into any socket buffer."""


class Reset(ConnectionClosed):
    """A fault resets the connection."""


class Exchange:
    """One request from its head to the end of its reply."""

    def __init__(
        self, state: ServerState, wire: Wire, request: Request, triggered: TriggeredFaults
    ) -> None:
        self._state = state
        self._wire = wire
        self._request = request
        self._triggered = triggered
        self._has_body = request.size_bytes != 0
        self.is_last = request.is_last
        """Whether the connection has to be closed after the reply."""

    def run(self, flight: InFlightRequest) -> None:
        """Read the body, execute the operation and send the reply.

        Raises:
            ConnectionClosed: The connection has ended.
        """
        entry, received = flight.entry, self._wire.received
        try:
            reply = self._reply()
        finally:
            entry.bytes_in = self._wire.received - received
        if self._triggered.first("lost"):
            raise ConnectionClosed
        entry.status = reply.status
        sent, head = self._wire.sent, self._head(reply)
        try:
            self._send(reply, head, flight)
        finally:
            if not flight.is_finished:
                entry.bytes_out = max(0, self._wire.sent - sent - len(head))

    def send(self, reply: Reply) -> None:
        """Send a reply without faults."""
        self._wire.send([self._head(reply), *reply.views])

    def receive(self, *, is_wanted: bool) -> Blob:
        """Read the body of the request, and add its trailers to the headers.

        The body is zeros if its content is unused.

        Raises:
            Refusal: The body is invalid, and the connection cannot be used any further.
        """
        size = self._request.size_bytes
        if size is None:
            self.is_last = True
            raise Refusal("MissingContentLength")
        if self._request.headers.get("expect", "").lower() == "100-continue":
            self._wire.send([CONTINUE])
        self._wire.begin()
        layers = self._layers()
        body = self._state.pool.allocate(size) if is_wanted else self._state.pool.zeros(size)
        at = 0
        for armed in self._triggered.interruptions if size else []:
            stop = int(size * armed.fault.at)
            self._fill(layers[-1], body, at, stop, is_wanted=is_wanted)
            at = stop
            _interrupt(armed)
        self._fill(layers[-1], body, at, size, is_wanted=is_wanted)
        for layer in reversed(layers):
            if layer.drain(self._wire.scratch):
                self.is_last = True
                raise Refusal("IncompleteBody", "There is more of it than was announced.")
            if isinstance(layer, Chunked):
                self._request.headers |= layer.trailers
        return Blob((body,))

    def _layers(self) -> list[Source]:
        length = self._request.wire_bytes
        layers: list[Source] = [Chunked(self._wire) if length is None else Plain(self._wire, length)]  # fmt: skip
        return [*layers, Chunked(layers[0])] if self._request.is_aws_chunked else layers

    def _fill(self, source: Source, body: Body, start: int, end: int, *, is_wanted: bool) -> None:
        if is_wanted:
            source.fill(body.view[start:end])
            return
        scratch = self._wire.scratch
        for at in range(start, end, len(scratch)):
            source.fill(scratch[: end - at])

    def _reply(self) -> Reply:
        try:
            return self._execute()
        except Refusal as refusal:
            return refuse(self._request, refusal)

    def _execute(self) -> Reply:
        request, settings = self._request, self._state.settings
        if error := self._triggered.first("error"):
            self._skip_body()
            raise Refusal(error.code, status=error.status)
        blob = self.receive(is_wanted=request.method != "PUT" or not settings.null)
        if self._has_body and self._triggered.first("flip"):
            flip_bit(blob.bodies[0].view, settings.seed, request.key)
        self._wire.wait(self._state.shared_link.link.latency_s)
        if lag := self._triggered.first("lag"):
            request.unlisted_s = lag.wait_s
        reply = execute(self._state, request, blob)
        if self._triggered.first("rot") and not settings.null:
            flip_bit(blob.bodies[0].view, settings.seed, request.key)
        return reply

    def _skip_body(self) -> None:
        """Read past the body of a refused request, so that the connection can be reused."""
        if "expect" in self._request.headers:
            self.is_last = True
        else:
            self.receive(is_wanted=False)

    def _head(self, reply: Reply) -> bytes:
        if self._request.method == "HEAD":
            reply.size_bytes = reply.body_bytes if reply.size_bytes is None else reply.size_bytes
            reply.views = []
        date, serial = http_date(self._state.now_s()), f"{self._state.serial():016X}"
        return reply.head(date=date, request_id=serial, is_last=self.is_last)

    def _send(self, reply: Reply, head: bytes, flight: InFlightRequest) -> None:
        views, parts, size = reply.views, [head], reply.body_bytes
        if not self._has_body and views and self._triggered.first("flip"):
            views = flipped(views, self._state.settings.seed, self._request.key)
        self._wire.begin()
        at = 0
        for armed in self._triggered.interruptions if not self._has_body else []:
            if position := armed.fault.at:
                stop = int(size * position)
                self._wire.send([*parts, *within(views, at, stop)])
                parts, at = [], stop
            _interrupt(armed)
        if size - at > TAIL_BYTES:
            self._wire.send([*parts, *within(views, at, size - TAIL_BYTES)])
            parts, at = [], size - TAIL_BYTES
        flight.entry.bytes_out = size
        flight.finish()
        self._wire.send([*parts, *within(views, at, size)])


def _interrupt(armed: ArmedFault) -> None:
    match armed.fault.kind:
        case "reset":
            raise Reset
        case "close":
            raise ConnectionClosed
        case _:
            armed.removed.wait(armed.fault.wait_s or None)
