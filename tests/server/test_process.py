"""The sockets of the service."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest
from holdfast.errors import AddressInUse
from holdfast.server.composition import settings_for_host
from holdfast.server.process import listen
from holdfast.settings import Settings


def test_response_body_does_not_wait_for_an_acknowledgement() -> None:
    """Regression: responses took 40 ms, as the body waited for an acknowledgement of the head."""

    async def delays() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            mine: socket.socket = writer.get_extra_info("socket")
            found.set_result(mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()
            await writer.wait_closed()

        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            result = await found
            writer.close()
            await writer.wait_closed()
        return result

    assert asyncio.run(delays()) != 0


def test_port_in_use_is_reported_with_a_remedy() -> None:
    with closing(listen("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]

        with pytest.raises(AddressInUse, match=rf"port {port} .* choose another with --port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "setting", "trusts"),
    [
        ("127.0.0.1", None, None),
        ("::1", None, None),
        ("localhost", None, None),
        ("0.0.0.0", None, False),
        ("::", None, False),
        ("", None, False),
        ("192.0.2.7", None, False),
        ("0.0.0.0", True, True),
    ],
)
def test_serving_beyond_loopback_requires_tokens(
    caplog: pytest.LogCaptureFixture, host: str, setting: bool | None, trusts: bool | None
) -> None:
    held = settings_for_host(Settings(trust_loopback=setting), host)

    assert held.trust_loopback is trusts
    assert ("every request needs a token" in caplog.text) == (trusts is False)


def test_public_address_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings_for_host(Settings(public_url="https://holdfast.example.com"), "127.0.0.1")

    assert "https://holdfast.example.com: without users" in caplog.text
