"""One request and its reply, with whatever befalls them on the way."""

from __future__ import annotations

from typing import Final

from fake_s3.counters import Flight
from fake_s3.errors import Refusal
from fake_s3.faults import Armed, Struck, flip_bit, flipped
from fake_s3.memory import Blob, Body, within
from fake_s3.operations import carry_out
from fake_s3.reply import Reply, http_date, refused
from fake_s3.request import Request
from fake_s3.state import ServerState
from fake_s3.wire import Chunked, Gone, Plain, Source, Wire

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
TAIL_BYTES: Final = 16 << 10
"""What is sent of a reply after it was counted: so much fits into any socket's buffer."""


class Reset(Gone):
    """The connection is to be reset."""


class Exchange:
    """What happens between the head of a request and the end of its reply."""

    def __init__(self, depot: ServerState, wire: Wire, request: Request, struck: Struck) -> None:
        self._depot = depot
        self._wire = wire
        self._request = request
        self._struck = struck
        self._has_body = request.size_bytes != 0
        self.is_last = request.is_last
        """Whether the connection is of no use afterwards."""

    def run(self, flight: Flight) -> None:
        """Read, do, answer.

        Raises:
            Gone: the connection is over.
        """
        entry, received = flight.entry, self._wire.received
        try:
            reply = self._reply()
        finally:
            entry.bytes_in = self._wire.received - received
        if self._struck.first("lost"):
            raise Gone
        entry.status = reply.status
        sent, head = self._wire.sent, self._head(reply)
        try:
            self._send(reply, head, flight)
        finally:
            if not flight.has_landed:
                entry.bytes_out = max(0, self._wire.sent - sent - len(head))

    def send(self, reply: Reply) -> None:
        """Send a reply that nothing befalls."""
        self._wire.send([self._head(reply), *reply.views])

    def receive(self, *, is_wanted: bool) -> Blob:
        """The body of the request, with its trailers among the headers. Zeros if its content is unused.

        Raises:
            Refusal: it is not as S3 wants it; then what follows on the connection is rubbish.
        """
        size = self._request.size_bytes
        if size is None:
            self.is_last = True
            raise Refusal("MissingContentLength")
        if self._request.headers.get("expect", "").lower() == "100-continue":
            self._wire.send([CONTINUE])
        self._wire.begin()
        layers = self._layers()
        body = self._depot.pool.take(size) if is_wanted else self._depot.pool.hollow(size)
        at = 0
        for armed in self._struck.interruptions if size else []:
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
            return self._done()
        except Refusal as refusal:
            return refused(refusal, self._request.key)

    def _done(self) -> Reply:
        request, settings = self._request, self._depot.settings
        if error := self._struck.first("error"):
            self._skip_body()
            raise Refusal(error.code, status=error.status)
        blob = self.receive(is_wanted=request.method != "PUT" or not settings.null)
        if self._has_body and self._struck.first("flip"):
            flip_bit(blob.bodies[0].view, settings.seed, request.key)
        self._wire.wait(self._depot.line.link.latency_s)
        if lag := self._struck.first("lag"):
            request.unlisted_s = lag.wait_s
        reply = carry_out(self._depot, request, blob)
        if self._struck.first("rot") and not settings.null:
            flip_bit(blob.bodies[0].view, settings.seed, request.key)
        return reply

    def _skip_body(self) -> None:
        """Let the connection be of use for the next request, where the client sends its body in any case."""
        if "expect" in self._request.headers:
            self.is_last = True
        else:
            self.receive(is_wanted=False)

    def _head(self, reply: Reply) -> bytes:
        if self._request.method == "HEAD":
            reply.size_bytes = reply.body_bytes if reply.size_bytes is None else reply.size_bytes
            reply.views = []
        date, serial = http_date(self._depot.now_s()), f"{self._depot.serial():016X}"
        return reply.head(date=date, request_id=serial, is_last=self.is_last)

    def _send(self, reply: Reply, head: bytes, flight: Flight) -> None:
        views, parts, size = reply.views, [head], reply.body_bytes
        if not self._has_body and views and self._struck.first("flip"):
            views = flipped(views, self._depot.settings.seed, self._request.key)
        self._wire.begin()
        at = 0
        for armed in self._struck.interruptions if not self._has_body else []:
            if share := armed.fault.at:
                stop = int(size * share)
                self._wire.send([*parts, *within(views, at, stop)])
                parts, at = [], stop
            _interrupt(armed)
        if size - at > TAIL_BYTES:
            self._wire.send([*parts, *within(views, at, size - TAIL_BYTES)])
            parts, at = [], size - TAIL_BYTES
        flight.entry.bytes_out = size
        flight.land()
        self._wire.send([*parts, *within(views, at, size)])


def _interrupt(armed: Armed) -> None:
    match armed.fault.kind:
        case "reset":
            raise Reset
        case "close":
            raise Gone
        case _:
            armed.over.wait(armed.fault.wait_s or None)
