"""Commands that download the bundle of a job and search its logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from holdfast.cli.app import app
from holdfast.cli.diagnostics import _save
from holdfast.client import Client
from holdfast.client.diagnostics import DiagnosticsClient
from holdfast.errors import BadRequest
from typer.testing import CliRunner


def client(answer: Callable[[httpx2.Request], httpx2.Response]) -> DiagnosticsClient:
    return Client("http://service", transport=httpx2.MockTransport(answer)).diagnostics


def match(line: int) -> dict[str, Any]:
    where = {"attempt": 1, "node": 0, "rank": None, "line": line, "offset": 0}
    return {**where, "text": "loss", "start": 0, "end": 4, "is_cut": False}


def test_search_continues_until_all_logs_are_read() -> None:
    """The search also continues after an empty response, which only reached its scan limit."""
    pages = {
        None: ([match(1), match(2)], "1:0:-1:10:3"),
        "1:0:-1:10:3": ([], "1:0:-1:99:9"),
        "1:0:-1:99:9": ([match(9)], None),
    }
    requests: list[dict[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        params = dict(request.url.params)
        requests.append(params)
        found, then = pages[params.get("cursor")]
        page = {"matches": found, "searched_bytes": 1, "next": then}
        return httpx2.Response(200, json=page)

    found = list(client(answer).search("j1", "loss", {"rank": 3}, is_regex=True))

    assert [item.line for item in found] == [1, 2, 9]
    assert {params["q"] for params in requests} == {"loss"}
    assert {params["rank"] for params in requests} == {"3"}
    assert {params["regex"] for params in requests} == {"true"}


def test_bundle_is_returned_unchanged() -> None:
    data = bytes(range(256))

    assert client(lambda _: httpx2.Response(200, content=data)).bundle("j1") == data


def test_bundle_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "job.zip"
    place.write_bytes(b"old")

    _save(place, b"new")

    assert place.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["job.zip"]


@pytest.mark.parametrize("place", ["nowhere/job.zip", "."])
def test_unwritable_bundle_path_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(BadRequest, match=r"cannot be written \(.*\); name another file with -o"):
        _save(tmp_path / place, b"new")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grep", "x", "--follow"], "--grep and --follow exclude each other"),
        (["--regex"], "need a text to search for; add --grep TEXT"),
        (["-i"], "need a text to search for; add --grep TEXT"),
    ],
)
def test_conflicting_log_options_are_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["logs", "j000000000000", *arguments])

    assert isinstance(done.exception, BadRequest)
    assert message in done.exception.detail
