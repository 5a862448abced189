"""The documentation as served by the service."""

from __future__ import annotations

import re

import pytest
from holdfast.api import docs_site
from support.requirements import skip_or_fail
from support.simulated_service import SimulatedService, client

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
PERSON = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def site() -> None:
    if not docs_site._site():
        skip_or_fail("needs the documentation site, which make docs builds")


@pytest.fixture
def no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "_site", dict)


@pytest.mark.usefixtures("site")
def test_site_is_open_to_anyone(world: SimulatedService) -> None:
    stranger = client(world.app, "192.0.2.7")

    answer = stranger.get("/docs")

    assert answer.status_code == 200
    assert answer.url.path == "/docs/"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "<title>Holdfast" in answer.text


@pytest.mark.usefixtures("site")
def test_policy_of_the_site_allows_only_files_of_the_service(world: SimulatedService) -> None:
    policy = world.http.get("/docs/").headers["content-security-policy"]
    dashboard = world.http.get("/healthz").headers["content-security-policy"]

    assert dashboard == f"{policy}; require-trusted-types-for 'script'"
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


@pytest.mark.usefixtures("site")
def test_pages_have_addresses_without_file_names(world: SimulatedService) -> None:
    assert "<h1" in world.http.get("/docs/howto/budgets/").text
    for path in ("/docs/howto/budgets", "/docs/changelog"):
        answer = world.http.get(path)
        assert (answer.status_code, answer.url.path) == (200, f"{path}/")


@pytest.mark.usefixtures("site")
def test_reference_is_a_page_for_browsers_only(world: SimulatedService) -> None:
    person, program, file = (
        world.http.get("/docs/errors", headers=PERSON),
        world.http.get("/docs/errors"),
        world.http.get("/docs/errors.md", headers=PERSON),
    )

    assert person.url.path == "/docs/reference/errors/"
    assert 'id="not-found"' in person.text, "the `type` of a problem names this heading"
    assert program.headers["content-type"] == file.headers["content-type"]
    assert program.headers["content-type"] == "text/markdown; charset=utf-8"
    assert program.headers["vary"] == "Accept"
    assert program.text == file.text


@pytest.mark.usefixtures("site")
def test_unchanged_files_are_not_sent_again(world: SimulatedService) -> None:
    first = world.http.get("/docs/search/search_index.json")

    again = world.http.get(
        "/docs/search/search_index.json", headers={"If-None-Match": first.headers["etag"]}
    )

    assert first.headers["content-encoding"] == "gzip"
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


@pytest.mark.usefixtures("site")
def test_every_file_of_the_site_is_served(world: SimulatedService) -> None:
    files = docs_site._site()

    answers = {name: world.http.get(f"/docs/{name}") for name in files if "/" not in name}

    assert len(answers) >= 2, "a page and a style sheet"
    assert {name: answer.content for name, answer in answers.items()} == {
        name: files[name].read_bytes() for name in answers
    }


@pytest.mark.usefixtures("site")
def test_scripts_are_kept_for_ever(world: SimulatedService) -> None:
    names = re.findall(r'(?:src|href)="(assets/[^"]+\.(?:js|css))"', world.http.get("/docs/").text)

    answers = [world.http.get(f"/docs/{name}") for name in names]

    assert len(names) >= 4
    assert {answer.status_code for answer in answers} == {200}
    assert all("immutable" in answer.headers["cache-control"] for answer in answers)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "path", ["howto/nothing/", "howto/..%2f..%2fclock.py", "..%2fclock.py", f"a/{'x' * 300}"]
)
def test_unknown_page_names_the_first_one(world: SimulatedService, path: str) -> None:
    for headers in (PERSON, {}):
        answer = world.http.get(f"/docs/{path}", headers=headers)

        assert answer.status_code == 404
        assert answer.json()["detail"].endswith("its first page is /docs/")


@pytest.mark.usefixtures("no_site")
@pytest.mark.parametrize("path", ["/docs/", "/docs/howto/budgets/"])
def test_site_that_is_not_built_is_answered_with_the_command(
    world: SimulatedService, path: str
) -> None:
    answer = world.http.get(path, headers=PERSON)

    assert answer.status_code == 404
    assert "is not built in this checkout; run make docs" in answer.json()["detail"]


@pytest.mark.usefixtures("no_site")
def test_reference_needs_no_site(world: SimulatedService) -> None:
    answer = world.http.get("/docs/errors", headers=PERSON)

    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert world.http.get("/docs/nothing").status_code == 404
