"""The built dashboard: complete, small, and part of every wheel."""

from __future__ import annotations

import gzip
import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from holdfast.api.auth.route_policy import PAGES
from holdfast.api.static_files import web_router
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.job import State
from support.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]
WEB = ROOT / "service/holdfast/web"
MOST_BYTES = 180 * 1024
"""Maximum compressed size of scripts that load before a page is displayed."""


def front_page() -> str:
    if not (WEB / "index.html").is_file():
        skip_or_fail("needs the dashboard, which make setup builds")
    return (WEB / "index.html").read_text()


def test_every_view_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/api.md").read_text()
    table = reference.partition("### The dashboard")[2].partition("###")[0]

    documented = set(re.findall(r"^\| `(/[^`]*)`", table, re.MULTILINE))

    assert documented == {route.path for route in web_router.routes if isinstance(route, APIRoute)}


def test_dashboard_and_service_have_the_same_pages() -> None:
    source = (ROOT / "dashboard/src/pages.ts").read_text()

    paths = re.findall(r"path: '([^']+)'", source)

    named = [re.sub(r":(\w+)", r"{\1}", path.replace(":id", ":job_id")) for path in paths]
    assert sorted(named) == sorted(PAGES)


def keys_of(record: str) -> set[str]:
    """The keys of a record in the dashboard's module of names."""
    source = (ROOT / "dashboard/src/phases.ts").read_text()
    (body,) = re.findall(
        rf"^(?:export )?const {record}\b.*?= {{\n(.*?)^}}", source, re.MULTILINE | re.DOTALL
    )
    return set(re.findall(r"^  (\w+): ", body, re.MULTILINE))


def test_dashboard_names_every_state_and_cause() -> None:
    states = {*State, *Outcome} - {State.ENDED}

    assert keys_of("STATES") == states
    assert keys_of("CAUSES") == set(Cause)


def test_first_page_loads_few_scripts() -> None:
    page = front_page()

    first = re.findall(r'(?:src|href)="/(assets/[^"]+\.js)"', page)

    assert first
    assert sum(len(gzip.compress((WEB / name).read_bytes())) for name in first) <= MOST_BYTES


def test_front_page_complies_with_its_security_policy() -> None:
    page = front_page()

    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page)
    assert not re.findall(r'(?:src|href)="(?!/)', page)


def test_dashboard_ships_licenses_of_its_dependencies() -> None:
    front_page()

    licenses = (WEB / "assets/licenses.md").read_text()

    for name in ("react", "react-dom", "react-router", "@tanstack/react-query", "uplot", "yaml"):
        assert f"## {name} - " in licenses, name


@pytest.fixture
def hook(tmp_path: Path) -> Any:
    """The build hook in a checkout without a built dashboard."""
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NeedsDashboard(str(tmp_path), {}, None, None, str(tmp_path), "wheel")


def test_wheel_build_without_dashboard_fails_with_instructions(hook: Any) -> None:
    with pytest.raises(FileNotFoundError, match="build the dashboard first, with make setup"):
        hook.initialize("standard", {})


def test_editable_install_needs_no_dashboard(hook: Any) -> None:
    hook.initialize("editable", {})


def test_build_hook_runs_for_every_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]

    assert "custom" in build["hooks"]
    assert "service/holdfast/web" in build["artifacts"]
