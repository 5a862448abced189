"""Log search of a job.

Each line is found once and in order, in bounded memory, however responses are cut.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from holdfast.api.app import create_app
from holdfast.api.routes.log_search import (
    CHUNK_BYTES,
    PATTERN_CHUNK_BYTES,
    LogSearch,
    SearchPosition,
)
from holdfast.cli.app import app
from holdfast.domain.diagnostics.log_matching import LogPattern
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.ports import LogSource
from support.simulated_service import HidingCloud, SimulatedService, at_a_port, client
from typer.testing import CliRunner

Where = tuple[int, int, int | None]


class CloudWithOutput(HidingCloud):
    """A cloud whose nodes and ranks have printed output."""

    printed: dict[Where, bytes]

    async def logs(self, key: str) -> Sequence[LogSource]:
        return [
            LogSource(attempt=a, node=n, rank=r, size_bytes=len(text))
            for (a, n, r), text in self.printed.items()
        ]

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        text = self.printed[source.attempt, source.node, source.rank]
        return text[offset : offset + limit]


class SearchedJob:
    """A service with one job and the output of its nodes."""

    def __init__(self, world: SimulatedService, printed: dict[Where, bytes]) -> None:
        self.job: str = world.submit()["id"]
        world.until(self.job, "training")
        cloud = world.cloud
        cloud.__class__ = CloudWithOutput
        assert isinstance(cloud, CloudWithOutput)
        cloud.printed = printed
        services = replace(world.services, launchers={Kind.LOCAL: cloud})
        self.http: TestClient = client(create_app(services))

    def page(self, q: str, **params: Any) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{self.job}/logs/search", params={"q": q, **params})
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    def all(self, q: str, **params: Any) -> list[dict[str, Any]]:
        """All matches, over all pages of the response."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self.page(q, **params, **({"cursor": cursor} if cursor else {}))
            found += page["matches"]
            cursor = page["next"]
            if cursor is None:
                return found


PRINTED: dict[Where, bytes] = {
    (1, 0, None): b"setup\nloss of patience\n",
    (1, 0, 0): "step 1 loss 0.5\nstep 2\n\nGröße: LOSS\n".encode(),
    (1, 1, 1): b"nothing\n",
    (2, 0, None): b"setup again\n",
    (2, 0, 0): b"step 3 loss 0.25\nlast loss, still being written",
}


@pytest.fixture
def searched_job(world: SimulatedService) -> SearchedJob:
    return SearchedJob(world, PRINTED)


def places(found: list[dict[str, Any]]) -> list[tuple[int, int, int | None, int]]:
    return [(m["attempt"], m["node"], m["rank"], m["line"]) for m in found]


def test_all_matches_are_listed_with_their_positions(searched_job: SearchedJob) -> None:
    page = searched_job.page("loss")

    assert places(page["matches"]) == [
        (1, 0, None, 2),
        (1, 0, 0, 1),
        (2, 0, 0, 1),
        (2, 0, 0, 2),
    ]
    assert page["matches"][1] == {
        "attempt": 1,
        "node": 0,
        "rank": 0,
        "line": 1,
        "offset": 0,
        "text": "step 1 loss 0.5",
        "start": 7,
        "end": 11,
        "is_cut": False,
    }
    assert page["next"] is None
    assert page["searched_bytes"] == sum(map(len, PRINTED.values()))


def test_match_offset_can_be_used_to_read_the_log(searched_job: SearchedJob) -> None:
    [found] = searched_job.page("Größe")["matches"]

    params = {"attempt": 1, "rank": 0, "offset": found["offset"], "limit": 7}
    read = searched_job.http.get(f"/v1/jobs/{searched_job.job}/logs/text", params=params)

    assert (found["line"], found["offset"]) == (4, 24)
    assert read.text == "Größe"


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"attempt": 1}, [(1, 0, None, 2), (1, 0, 0, 1)]),
        ({"rank": 0, "attempt": 2}, [(2, 0, 0, 1), (2, 0, 0, 2)]),
        ({"node": 1}, []),
        ({"ignore_case": True, "attempt": 1}, [(1, 0, None, 2), (1, 0, 0, 1), (1, 0, 0, 4)]),
    ],
)
def test_search_filters_by_attempt_node_and_rank(
    searched_job: SearchedJob, params: dict[str, Any], found: list[tuple[int, int, int | None, int]]
) -> None:
    assert places(searched_job.page("loss", **params)["matches"]) == found


def test_pattern_is_a_regex_only_on_request(searched_job: SearchedJob) -> None:
    assert places(searched_job.page("^step [23]", regex=True)["matches"]) == [
        (1, 0, 0, 2),
        (2, 0, 0, 1),
    ]
    assert searched_job.page("^step [23]")["matches"] == []


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_truncated_responses_add_up_to_all_matches(searched_job: SearchedJob, limit: int) -> None:
    assert searched_job.all("s", limit=limit) == searched_job.page("s")["matches"]


@pytest.mark.parametrize(
    "params",
    [
        {"q": "(", "regex": True},
        {"q": "a\nb"},
        {"q": "x", "cursor": "1:0"},
        {"q": "x", "cursor": "1:0:0:-3:1"},
        {"q": "x", "cursor": "loss"},
        {"q": "x", "cursor": f"1:0:0:{10**30}:1"},
    ],
)
def test_invalid_search_is_refused_with_a_reason(
    searched_job: SearchedJob, params: dict[str, Any]
) -> None:
    answer = searched_job.http.get(f"/v1/jobs/{searched_job.job}/logs/search", params=params)

    assert answer.status_code == 400
    assert answer.json()["type"] == "/docs/errors#bad-request"
    assert answer.json()["detail"].startswith(("q: ", "cursor "))


def test_node_output_precedes_its_first_rank(
    world: SimulatedService,
) -> None:
    searched_job = SearchedJob(world, dict(reversed(PRINTED.items())))

    listed = searched_job.http.get(f"/v1/jobs/{searched_job.job}/logs").json()

    assert [(log["attempt"], log["node"], log["rank"]) for log in listed] == [*PRINTED]
    assert searched_job.all("s", limit=1) == searched_job.page("s")["matches"]


def search_log(
    text: bytes, needle: str, chunk_bytes: int = 10_000, left_bytes: int = 10**12
) -> list[Any]:
    """All matches in one log, with each chunk as short as possible."""
    found, place = list[Any](), SearchPosition((1, 0, -1))
    while True:
        one = LogSearch(LogPattern.compile(needle), chunk_bytes, remaining_bytes=left_bytes)
        rest = one.search(lambda offset, limit: text[offset : offset + limit], place)
        found += one.matches
        if rest is None:
            return found
        place = SearchPosition.parse(str(rest))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 10_000])
@pytest.mark.parametrize("left_bytes", [1, 10**12])
def test_line_across_chunks_is_found_once(chunk_bytes: int, left_bytes: int) -> None:
    lines = [b"%07d %s" % (n, b"needle" if n % 20_000 == 0 else b"hay" * 5) for n in range(120_000)]
    text = b"\n".join(lines)
    assert len(text) > 2 * CHUNK_BYTES

    found = search_log(text, "needle", chunk_bytes, left_bytes)

    assert [match.line for match in found] == [1, 20_001, 40_001, 60_001, 80_001, 100_001]
    assert all(text[m.offset :].startswith(m.text.encode()) for m in found)


@pytest.mark.parametrize("chunk_bytes", [1, 10_000])
@pytest.mark.parametrize("left_bytes", [1, 2 * CHUNK_BYTES, 10**12])
def test_long_line_is_searched_at_its_beginning_only(chunk_bytes: int, left_bytes: int) -> None:
    """This also holds if a response ends within the line."""
    long = b"needle " + b"x" * (3 * CHUNK_BYTES) + b" needle"

    found = search_log(b"first\n" + long + b"\nthe needle\n", "needle", chunk_bytes, left_bytes)

    assert [(match.line, match.is_cut) for match in found] == [(2, True), (3, False)]
    assert found[1].offset == 6 + len(long) + 1


def test_endless_line_spans_several_responses() -> None:
    """A progress bar never writes a newline; one request would read all of it."""
    bar = b"\r" * (40 * CHUNK_BYTES)
    one = LogSearch(LogPattern.compile("needle"), 100, remaining_bytes=5 * CHUNK_BYTES)

    rest = one.search(
        lambda offset, limit: bar[offset : offset + limit], SearchPosition((1, 0, -1))
    )

    assert rest == SearchPosition((1, 0, -1), 5 * CHUNK_BYTES)
    assert one.searched_bytes == 5 * CHUNK_BYTES


def test_regex_search_checks_its_deadline_more_often() -> None:
    read = list[int]()

    def printed(offset: int, limit: int) -> bytes:
        read.append(limit)
        return b"a line\n" * (limit // 7) if offset < CHUNK_BYTES else b""

    LogSearch(LogPattern.compile("([a-h]{0,50}){0,9}z", is_regex=True), 100).search(
        printed, SearchPosition((1, 0, -1))
    )

    assert set(read) == {PATTERN_CHUNK_BYTES}


def test_million_lines_are_searched_in_bounded_memory() -> None:
    line = b"a line that is printed again and again, by a rank that has much to say\n"
    size = len(line) * 1_000_000

    def read(offset: int, limit: int) -> bytes:
        end = min(size, offset + limit)
        first, last = offset // len(line), -(-end // len(line))
        return (line * (last - first))[offset - first * len(line) : end - first * len(line)]

    one = LogSearch(LogPattern.compile("needle"), 100)
    one.until_s = float("inf")
    tracemalloc.start()
    rest = one.search(read, SearchPosition((1, 0, -1)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert rest is None
    assert one.searched_bytes == size
    assert 0 <= 512 * 1024 * 1024 - size - one.remaining_bytes < 100 * len(line)
    assert peak < 16 * CHUNK_BYTES


def test_search_past_its_deadline_returns_its_position() -> None:
    one = LogSearch(LogPattern.compile("needle"), 100)
    one.until_s = 0.0

    assert one.search(
        lambda offset, limit: b"needle\n", SearchPosition((1, 0, -1))
    ) == SearchPosition((1, 0, -1))
    assert one.matches == []


def test_command_line_prints_each_match_with_its_position(
    searched_job: SearchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_a_port(searched_job.http.app) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        found = CliRunner().invoke(
            app, ["logs", searched_job.job, "--grep", "LOSS", "-i", "--attempt", "1"]
        )
        as_json = CliRunner().invoke(
            app, ["logs", searched_job.job, "--grep", "^step", "-E", "--json"]
        )
        nothing = CliRunner().invoke(app, ["logs", searched_job.job, "--grep", "no such words"])

    assert found.stdout.splitlines() == [
        "attempt 1 node 0:2: loss of patience",
        "attempt 1 rank 0:1: step 1 loss 0.5",
        "attempt 1 rank 0:4: Größe: LOSS",
    ]
    assert [json.loads(line)["line"] for line in as_json.stdout.splitlines()] == [1, 2, 1]
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert f"no match in the logs of job {searched_job.job}" in nothing.stderr
