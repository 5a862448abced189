"""The dashboard as served by the service."""

from __future__ import annotations

import gzip
import re
from importlib import resources

import pytest
from support.requirements import skip_or_fail
from support.simulated_service import SimulatedService, client

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def dashboard() -> None:
    if not (resources.files("holdfast") / "web" / "index.html").is_file():
        skip_or_fail("needs the dashboard, which make setup builds")


@pytest.mark.parametrize("path", ["/", "/jobs/any", "/preemptions", "/prices", "/submit", "/team"])
def test_every_view_is_the_same_page_and_is_revalidated(world: SimulatedService, path: str) -> None:
    stranger = client(world.app, "192.0.2.7")  # The page contains no data.

    answer = stranger.get(path)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_assets_are_cached_as_immutable(world: SimulatedService) -> None:
    names = re.findall(r'(?:src|href)="(/assets/[^"]+)"', world.http.get("/").text)

    answers = [world.http.get(name) for name in names]

    assert len(names) >= 3
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["cache-control"] for answer in answers} == {
        "public, max-age=31536000, immutable"
    }


def test_files_are_compressed_for_clients_that_accept_it(world: SimulatedService) -> None:
    (name,) = re.findall(r'src="(/assets/[^"]+\.js)"', world.http.get("/").text)
    plain = world.http.get(name, headers={"Accept-Encoding": "identity"})

    packed = world.http.get(name, headers={"Accept-Encoding": "gzip"})

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content  # The client has decompressed it.
    assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, mtime=0))
    assert packed.headers["vary"] == "Accept-Encoding"


def test_unknown_path_returns_the_page_to_browsers_only(world: SimulatedService) -> None:
    person = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}

    page = world.http.get("/no/such/page", headers=person)
    api = world.http.get("/v1/no-such-route", headers=person)
    program = world.http.get("/no/such/page", headers={"Accept": "application/json"})

    assert (page.status_code, api.status_code, program.status_code) == (404, 404, 404)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    kinds = {api.headers["content-type"], program.headers["content-type"]}
    assert kinds == {"application/problem+json"}


@pytest.mark.parametrize("path", ["/assets/absent.js", "/assets/..%2findex.html", "/no/such/page"])
def test_missing_file_is_answered_with_problem_details(world: SimulatedService, path: str) -> None:
    answer = world.http.get(path)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
