"""A search in the logs of a job: every line once, in order, in bounded memory, however the answers are cut."""

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


class Printing(HidingCloud):
    """A cloud whose nodes and ranks have printed something."""

    printed: dict[Where, bytes]

    async def logs(self, key: str) -> Sequence[LogSource]:
        return [
            LogSource(attempt=a, node=n, rank=r, size_bytes=len(text))
            for (a, n, r), text in self.printed.items()
        ]

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        text = self.printed[source.attempt, source.node, source.rank]
        return text[offset : offset + limit]


class Room:
    """A service with one job, and what its nodes have printed."""

    def __init__(self, world: SimulatedService, printed: dict[Where, bytes]) -> None:
        self.job: str = world.submit()["id"]
        world.until(self.job, "training")
        cloud = world.cloud
        cloud.__class__ = Printing
        assert isinstance(cloud, Printing)
        cloud.printed = printed
        services = replace(world.services, launchers={Kind.LOCAL: cloud})
        self.http: TestClient = client(create_app(services))

    def page(self, q: str, **asked: Any) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{self.job}/logs/search", params={"q": q, **asked})
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    def all(self, q: str, **asked: Any) -> list[dict[str, Any]]:
        """All matches, answer after answer."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self.page(q, **asked, **({"cursor": cursor} if cursor else {}))
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
def room(world: SimulatedService) -> Room:
    return Room(world, PRINTED)


def places(found: list[dict[str, Any]]) -> list[tuple[int, int, int | None, int]]:
    return [(m["attempt"], m["node"], m["rank"], m["line"]) for m in found]


def test_all_matches_are_listed_with_their_positions(room: Room) -> None:
    page = room.page("loss")

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


def test_the_offset_is_one_at_which_the_log_can_be_read(room: Room) -> None:
    [found] = room.page("Größe")["matches"]

    asked = {"attempt": 1, "rank": 0, "offset": found["offset"], "limit": 7}
    read = room.http.get(f"/v1/jobs/{room.job}/logs/text", params=asked)

    assert (found["line"], found["offset"]) == (4, 24)
    assert read.text == "Größe"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"attempt": 1}, [(1, 0, None, 2), (1, 0, 0, 1)]),
        ({"rank": 0, "attempt": 2}, [(2, 0, 0, 1), (2, 0, 0, 2)]),
        ({"node": 1}, []),
        ({"ignore_case": True, "attempt": 1}, [(1, 0, None, 2), (1, 0, 0, 1), (1, 0, 0, 4)]),
    ],
)
def test_a_search_can_be_narrowed(
    room: Room, asked: dict[str, Any], found: list[tuple[int, int, int | None, int]]
) -> None:
    assert places(room.page("loss", **asked)["matches"]) == found


def test_pattern_is_a_regex_only_on_request(room: Room) -> None:
    assert places(room.page("^step [23]", regex=True)["matches"]) == [(1, 0, 0, 2), (2, 0, 0, 1)]
    assert room.page("^step [23]")["matches"] == []


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_answers_that_are_cut_anywhere_make_the_same_whole(room: Room, limit: int) -> None:
    assert room.all("s", limit=limit) == room.page("s")["matches"]


@pytest.mark.parametrize(
    "asked",
    [
        {"q": "(", "regex": True},
        {"q": "a\nb"},
        {"q": "x", "cursor": "1:0"},
        {"q": "x", "cursor": "1:0:0:-3:1"},
        {"q": "x", "cursor": "loss"},
        {"q": "x", "cursor": f"1:0:0:{10**30}:1"},
    ],
)
def test_invalid_search_is_refused_with_a_reason(room: Room, asked: dict[str, Any]) -> None:
    answer = room.http.get(f"/v1/jobs/{room.job}/logs/search", params=asked)

    assert answer.status_code == 400
    assert answer.json()["type"] == "/docs/errors#bad-request"
    assert answer.json()["detail"].startswith(("q: ", "cursor "))


def test_node_output_precedes_its_first_rank(
    world: SimulatedService,
) -> None:
    room = Room(world, dict(reversed(PRINTED.items())))

    listed = room.http.get(f"/v1/jobs/{room.job}/logs").json()

    assert [(log["attempt"], log["node"], log["rank"]) for log in listed] == [*PRINTED]
    assert room.all("s", limit=1) == room.page("s")["matches"]


def hunt(text: bytes, needle: str, room: int = 10_000, left_bytes: int = 10**12) -> list[Any]:
    """All matches in one log, each stretch as short as it may be."""
    found, place = list[Any](), SearchPosition((1, 0, -1))
    while True:
        one = LogSearch(LogPattern.compile(needle), room, remaining_bytes=left_bytes)
        rest = one.search(lambda offset, limit: text[offset : offset + limit], place)
        found += one.matches
        if rest is None:
            return found
        place = SearchPosition.parse(str(rest))


@pytest.mark.parametrize("room", [1, 7, 10_000])
@pytest.mark.parametrize("left_bytes", [1, 10**12])
def test_lines_over_the_end_of_a_piece_are_found_once(room: int, left_bytes: int) -> None:
    lines = [b"%07d %s" % (n, b"needle" if n % 20_000 == 0 else b"hay" * 5) for n in range(120_000)]
    text = b"\n".join(lines)
    assert len(text) > 2 * CHUNK_BYTES

    found = hunt(text, "needle", room, left_bytes)

    assert [match.line for match in found] == [1, 20_001, 40_001, 60_001, 80_001, 100_001]
    assert all(text[m.offset :].startswith(m.text.encode()) for m in found)


@pytest.mark.parametrize("room", [1, 10_000])
@pytest.mark.parametrize("left_bytes", [1, 2 * CHUNK_BYTES, 10**12])
def test_only_the_beginning_of_a_long_line_is_searched(room: int, left_bytes: int) -> None:
    """Also where an answer ends within it."""
    long = b"needle " + b"x" * (3 * CHUNK_BYTES) + b" needle"

    found = hunt(b"first\n" + long + b"\nthe needle\n", "needle", room, left_bytes)

    assert [(match.line, match.is_cut) for match in found] == [(2, True), (3, False)]
    assert found[1].offset == 6 + len(long) + 1


def test_a_line_without_an_end_is_left_for_the_next_answer_too() -> None:
    """A progress bar never writes a newline; one request would read all of it."""
    bar = b"\r" * (40 * CHUNK_BYTES)
    one = LogSearch(LogPattern.compile("needle"), 100, remaining_bytes=5 * CHUNK_BYTES)

    rest = one.search(
        lambda offset, limit: bar[offset : offset + limit], SearchPosition((1, 0, -1))
    )

    assert rest == SearchPosition((1, 0, -1), 5 * CHUNK_BYTES)
    assert one.searched_bytes == 5 * CHUNK_BYTES


def test_for_a_pattern_the_clock_is_looked_at_more_often() -> None:
    read = list[int]()

    def printed(offset: int, limit: int) -> bytes:
        read.append(limit)
        return b"a line\n" * (limit // 7) if offset < CHUNK_BYTES else b""

    LogSearch(LogPattern.compile("([a-h]{0,50}){0,9}z", is_regex=True), 100).search(
        printed, SearchPosition((1, 0, -1))
    )

    assert set(read) == {PATTERN_CHUNK_BYTES}


def test_a_million_lines_take_the_memory_of_a_few_pieces() -> None:
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
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_a_port(room.http.app) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        found = CliRunner().invoke(
            app, ["logs", room.job, "--grep", "LOSS", "-i", "--attempt", "1"]
        )
        as_json = CliRunner().invoke(app, ["logs", room.job, "--grep", "^step", "-E", "--json"])
        nothing = CliRunner().invoke(app, ["logs", room.job, "--grep", "no such words"])

    assert found.stdout.splitlines() == [
        "attempt 1 node 0:2: loss of patience",
        "attempt 1 rank 0:1: step 1 loss 0.5",
        "attempt 1 rank 0:4: Größe: LOSS",
    ]
    assert [json.loads(line)["line"] for line in as_json.stdout.splitlines()] == [1, 2, 1]
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert f"no match in the logs of job {room.job}" in nothing.stderr
