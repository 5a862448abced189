"""Webhooks sent to real HTTP servers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from holdfast.domain.notifications.channels import Message, payload
from holdfast.domain.notifications.events import Notification, NotificationKind
from holdfast.egress_policy import EgressPolicy, networks
from holdfast.errors import BadChannel, NotDelivered
from holdfast.notifications import open_dispatcher
from holdfast.notifications.webhook import WebhookTransport
from support.events import DAWN
from support.fakes import FixedClock

SECRET = f"whsec_{base64.b64encode(b'k' * 32).decode()}"
OTHER = f"whsec_{base64.b64encode(b'o' * 32).decode()}"
NOTIFICATION = Notification(
    id="job-1-7", kind=NotificationKind.FAILED, at=DAWN, text="tiny (job-1) has failed"
)
LETTER = Message(id="msg_1", payload=payload("vision", "ops", [NOTIFICATION.body()], DAWN))


@dataclass
class Receiver:
    """The web server of a receiver, which responds with `status`."""

    status: int = 200
    location: str = ""
    answer: bytes = b""
    pace_s: float = 0.0
    """Pause before each byte of the response."""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=b"


@contextmanager
def serving(receiver: Receiver) -> Iterator[Receiver]:
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.got.append((self.path, headers, body))
            self.send_response(receiver.status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            if receiver.pace_s:
                self.wfile.write(b"HTTP/1.0 ")
                while not stopped.wait(receiver.pace_s):
                    self.wfile.write(b"x")
            self.end_headers()
            self.wfile.write(receiver.answer)

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # Some tests abort a request while it is sent.

    server = Quiet(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as it:
        yield it


def hooks(
    resolve: Callable[[str, int], Sequence[str]] | None = None, allowed: str = "127.0.0.1/32"
) -> WebhookTransport:
    return WebhookTransport(
        EgressPolicy(networks(allowed), resolve), FixedClock(), allows_http=True
    )


def test_a_webhook_is_signed_as_its_receiver_can_check(receiver: Receiver) -> None:
    hooks().send(receiver.url, [SECRET], LETTER)

    [(path, headers, body)] = receiver.got
    stamp = headers["webhook-timestamp"]
    result = b"msg_1." + stamp.encode() + b"." + body
    expected = base64.b64encode(hmac.new(b"k" * 32, result, hashlib.sha256).digest()).decode()
    assert path == "/hook?a=b"
    assert headers["webhook-id"] == "msg_1"
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert stamp == str(int(DAWN.timestamp()))
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["data"]["news"][0]["id"] == "job-1-7"


def test_after_a_rotation_both_secrets_sign(receiver: Receiver) -> None:
    hooks().send(receiver.url, [SECRET, OTHER], LETTER)

    signatures = receiver.got[0][1]["webhook-signature"].split(" ")
    assert len(set(signatures)) == 2
    assert all(signature.startswith("v1,") for signature in signatures)


def test_secret_in_the_url_fragment_signs_and_is_not_sent(receiver: Receiver) -> None:
    hooks().send(f"{receiver.url}#{SECRET}", [], LETTER)
    hooks().send(receiver.url, [SECRET], LETTER)
    hooks().send(receiver.url, [], LETTER)

    first, second, third = (headers for _, headers, _ in receiver.got)
    assert first["webhook-signature"] == second["webhook-signature"]
    assert "webhook-signature" not in third
    assert "whsec" not in str(receiver.got)


def test_webhook_connects_to_the_checked_address(receiver: Receiver) -> None:
    """DNS rebinding: the name is resolved once.

    A second resolution could return another address.
    """
    answers = ["127.0.0.1", "127.0.0.2", "169.254.169.254"]

    hooks(lambda host, port: [answers.pop(0)]).send(
        f"http://hook.example:{receiver.port}/", [], LETTER
    )

    assert answers == ["127.0.0.2", "169.254.169.254"]
    assert receiver.got[0][1]["host"] == f"hook.example:{receiver.port}"


def test_unreachable_ipv6_address_falls_back_to_ipv4(
    receiver: Receiver,
) -> None:
    both = "127.0.0.1/32, ::1/128"

    hooks(lambda host, port: ["::1", "127.0.0.1"], allowed=both).send(
        f"http://hook.example:{receiver.port}/", [], LETTER
    )

    assert len(receiver.got) == 1


def test_host_name_of_a_private_address_is_not_called(receiver: Receiver) -> None:
    with pytest.raises(NotDelivered, match=r"hook\.example is refused: 127\.0\.0\.1 is not public"):
        hooks(lambda host, port: ["127.0.0.1"], allowed="").send(
            f"http://hook.example:{receiver.port}/", [], LETTER
        )

    assert receiver.got == []


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    with serving(Receiver()) as inside:
        receiver.status, receiver.location = 307, inside.url

        with pytest.raises(NotDelivered, match="redirects are not followed"):
            hooks().send(receiver.url, [], LETTER)

        assert inside.got == []


@pytest.mark.parametrize(("status", "for_good"), [(500, False), (404, False), (410, True)])
def test_error_status_is_reported_and_410_is_permanent(
    receiver: Receiver, status: int, *, for_good: bool
) -> None:
    receiver.status = status

    with pytest.raises(NotDelivered, match=f"responded with status {status}") as caught:
        hooks().send(receiver.url, [], LETTER)

    assert caught.value.for_good is for_good


def test_long_response_is_not_read_completely(receiver: Receiver) -> None:
    receiver.answer = b"x" * 50_000_000

    hooks().send(receiver.url, [], LETTER)

    assert len(receiver.got) == 1


def test_slow_response_is_cut_off(receiver: Receiver) -> None:
    """Each byte arrives in time, but the response never ends."""
    receiver.pace_s = 0.2
    begun_s = time.monotonic()

    with pytest.raises(NotDelivered):
        hooks().send(receiver.url, [], LETTER)

    assert time.monotonic() - begun_s < 60


def test_connection_refused_raises_not_delivered_without_url() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/secret-path"

        with pytest.raises(NotDelivered, match="ConnectionRefusedError") as caught:
            hooks().send(url, [], LETTER)

    assert "secret-path" not in caught.value.detail


def test_plain_response_to_tls_raises_not_delivered(receiver: Receiver) -> None:
    with pytest.raises(NotDelivered, match="SSLError"):
        hooks().send(receiver.url.replace("http:", "https:"), [], LETTER)

    assert receiver.got == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "must begin with https"),
        ("https://", "needs a host"),
        ("https:///path", "needs a host"),
        ("https://example.com:0/", "needs a host"),
        ("https://example.com:99999/", "not a webhook address"),
        ("https://[::1/", "not a webhook address"),
        ("https://example.com:hush/", "not a webhook address"),
        ("https://user:hush@example.com/", "must not contain user and password"),
        ("https://example.com/a b", "non-ASCII characters"),
        ("https://example.com/\r\nHost: evil", "non-ASCII characters"),
        ("https://bücher.example/", "non-ASCII characters"),
        ("https://example.com/#whsec_short", "24 to 64 bytes"),
        ("https://127.0.0.1/", "is not public"),
        ("https://[::ffff:10.0.0.1]/", "in another form"),
        ("https://169.254.169.254/latest/meta-data", "hands out cloud credentials"),
        ("https://ex*mple.com/", "needs a host"),
    ],
)
def test_invalid_webhook_url_is_refused_with_a_remedy(url: str, why: str) -> None:
    with pytest.raises(BadChannel, match=why) as caught:
        open_dispatcher(FixedClock()).destination(url)

    assert caught.value.detail.startswith("url: ")
    assert "hush" not in caught.value.detail


def test_only_scheme_and_host_of_a_webhook_are_shown() -> None:
    place = open_dispatcher(FixedClock()).destination(
        f"https://example.com:8443/secret?token=hush#{SECRET}"
    )

    assert (place.transport, place.shown) == ("webhook", "https://example.com:8443")
