"""Exhausted file descriptors are one line in the log, without a traceback."""

from __future__ import annotations

import asyncio
import errno

import pytest
from holdfast.host import resources


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_exhausted_descriptors_are_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture, number: int
) -> None:
    context = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(number, ""),
    }
    loop = asyncio.new_event_loop()

    for _ in range(1000):
        resources.report_loop_error(loop, context)
    loop.close()

    assert len(caplog.records) <= 1
    assert all("no more connections" in record.getMessage() for record in caplog.records)


def test_accept_retries_on_a_closed_socket_are_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    context = {
        "message": "Exception in callback BaseSelectorEventLoop._start_serving(<function>)",
        "exception": ValueError("Invalid file descriptor: -1"),
    }

    resources.report_loop_error(loop, context)
    loop.close()

    assert caplog.records == []


def test_other_errors_of_the_loop_are_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()

    resources.report_loop_error(loop, {"message": "a task failed", "exception": ValueError("x")})
    loop.close()

    assert "a task failed" in caplog.text
