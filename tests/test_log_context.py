"""Records of the service's log carry their request, job and launch, as text and as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from threading import Thread

import pytest
from holdfast.log_context import JsonFormatter, TextFormatter, current_context, log_context


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("holdfast.x", logging.WARNING, "x.py", 1, message, args, exc_info)


def test_json_has_the_context_and_one_line() -> None:
    with log_context(request="r-1"), log_context(job="j1", launch="j1-2"):
        line = JsonFormatter().format(record("two\nlines of %s", "job é"))

    found = json.loads(line)
    assert "\n" not in line
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": "holdfast.x",
        "message": "two\nlines of job é",
        "request": "r-1",
        "job": "j1",
        "launch": "j1-2",
    }


def test_json_has_the_traceback_of_an_error() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        divide_by_zero()

    found = json.loads(JsonFormatter().format(record("unexpected", error=raised.value)))

    assert found["message"] == "unexpected"
    assert found["exception"].splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "divide_by_zero" in found["exception"]


def divide_by_zero() -> float:
    return 1 / 0


def test_text_adds_what_the_message_lacks() -> None:
    with log_context(job="j1", request="r-1"):
        with_context = TextFormatter().format(record("j1: no answer"))
    without = TextFormatter().format(record("started"))

    assert with_context.endswith("WARNING holdfast.x: j1: no answer [request=r-1]")
    assert without.endswith("WARNING holdfast.x: started")


def test_context_ends_with_its_block_and_is_that_of_a_task() -> None:
    seen: dict[str, str] = {}

    async def work(job: str) -> None:
        with log_context(job=job):
            await asyncio.sleep(0)
            await asyncio.to_thread(lambda: seen.update({job: current_context()["job"]}))

    async def both() -> None:
        await asyncio.gather(work("j1"), work("j2"))

    asyncio.run(both())
    thread = Thread(target=lambda: seen.update(other=str(dict(current_context()))))
    with log_context(job="j3"):
        thread.start()
        thread.join()

    assert seen == {"j1": "j1", "j2": "j2", "other": "{}"}
    assert current_context() == {}
