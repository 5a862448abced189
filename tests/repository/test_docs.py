"""The reference is complete, and examples in the docs are valid."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from holdfast.api.app import create_app
from holdfast.cli.app import app
from holdfast.domain.billing.bill import Phases
from holdfast.domain.events import KINDS, Cause, Guard, Outcome
from holdfast.domain.jobfile.parser import Overrides, parse_job_file
from holdfast.domain.jobfile.plan import PlanSpec
from holdfast.domain.jobfile.resources import Recovery, Resources
from holdfast.domain.jobfile.spec import (
    Checkpoint,
    GroupSpec,
    HoldfastBlock,
    JobFile,
    Limits,
)
from holdfast.domain.jobs.job import State
from holdfast.errors import HoldfastError
from holdfast.services import Services
from holdfast.settings import Settings, SimulatedMarketSettings
from holdfast_worker.protocol.environment import Env, Exit, SkyEnv
from holdfast_worker.protocol.reports import ReportKind
from support.tables import for_each

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
COMMANDS = typer.main.get_command(app)
GENERATED = {"service/holdfast/web", "service/holdfast/docs_site"}
"""Directories that `make setup` creates."""
SOURCES = {".py", ".ts", ".tsx", ".md", ".json", ".yaml", ".yml", ".sbatch", ".toml"}


def page(name: str) -> str:
    """The text of a page of the reference."""
    return (DOCS / "reference" / f"{name}.md").read_text()


def headings(text: str) -> set[str]:
    """The headings of a page, without hashes and backticks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {match[1].replace("`", "") for match in re.finditer(r"^#+ (.+)$", prose, re.MULTILINE)}


def section(text: str, heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    match = re.search(rf"^(#+) `?{re.escape(heading)}`?$", text, re.MULTILINE)
    assert match, f"there is no heading {heading!r}"
    rest = text[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def blocks(text: str, language: str) -> Iterator[str]:
    """The code blocks of a page in a language."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield match[1]


def commands(group: Any, name: str = "holdfast") -> dict[str, Any]:
    """All commands by name. Typer has its own versions of click's classes."""
    if not hasattr(group, "commands"):
        return {name: group}
    # A group with a callback is also a command.
    itself = {name: group} if group.invoke_without_command else {}
    return itself | {
        full: command
        for word, inner in group.commands.items()
        for full, command in commands(inner, f"{name} {word}").items()
    }


@functools.cache
def all_commands() -> dict[str, Any]:
    """All commands of `holdfast` by name."""
    return commands(COMMANDS)


def errors(parent: type[HoldfastError] = HoldfastError) -> set[type[HoldfastError]]:
    """All errors that users can receive."""
    return {parent}.union(*(errors(child) for child in parent.__subclasses__()))


def repository_files() -> set[str]:
    """Relative paths of all files and directories that git tracks or may track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = {Path(line) for line in listed.stdout.splitlines() if (ROOT / line).exists()}
    return {str(path) for file in files for path in (file, *file.parents)}


def named_paths(text: str) -> set[str]:
    """Paths and Python files in backticks, without placeholders; directories without their slash."""
    found = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.py)`", text)
    return {path.rstrip("/") for path in found if Path(path).suffix in SOURCES or path[-1] == "/"}


def test_paths_in_the_contributor_pages_exist() -> None:
    ends = {f"/{path}" for path in repository_files()}
    for file in [ROOT / "CONTRIBUTING.md", *(DOCS / "contributing").glob("*.md")]:
        missing = {
            path
            for path in named_paths(file.read_text())
            if path not in GENERATED and not any(end.endswith(f"/{path}") for end in ends)
        }

        assert not missing, f"{file.name} names files that do not exist"


@pytest.mark.parametrize(
    ("model", "prefix"), [(Settings, "HOLDFAST_"), (SimulatedMarketSettings, "HOLDFAST_LOCAL_")]
)
def test_every_setting_has_its_section_and_its_default(
    model: type[Settings | SimulatedMarketSettings], prefix: str
) -> None:
    for name, field in model.model_fields.items():
        documented = section(page("settings"), f"{prefix}{name.upper()}")

        assert (
            f"Default: {'none' if field.default is None else f'`{field.default}`'}." in documented
        )


def test_described_settings_exist() -> None:
    known = {f"HOLDFAST_{name.upper()}" for name in Settings.model_fields}
    known |= {f"HOLDFAST_LOCAL_{name.upper()}" for name in SimulatedMarketSettings.model_fields}

    assert {name for name in headings(page("settings")) if name.startswith("HOLDFAST_")} == known


@for_each(commands(COMMANDS))
def test_every_command_has_its_section_with_every_option(name: str) -> None:
    documented = section(page("cli"), name)

    for param in all_commands()[name].params:
        for spelling in (*param.opts, *param.secondary_opts):
            if spelling.startswith("-") and spelling not in {"-h", "--help"}:
                assert f"`{spelling}" in documented or f", {spelling}" in documented, spelling


def test_described_commands_exist() -> None:
    documented = {name for name in headings(page("cli")) if name.startswith("holdfast ")}

    assert documented == set(commands(COMMANDS))


@for_each(KINDS)
def test_every_event_has_its_section_with_every_field(kind: str) -> None:
    documented = section(page("events"), kind)

    for field in dataclasses.fields(KINDS[kind]):
        assert field.name == "at" or f"`{field.name}`" in documented, field.name


def test_every_cause_of_a_loss_is_described() -> None:
    assert all(f"`{cause}`" in page("events") for cause in Cause)


def test_every_guard_is_described() -> None:
    assert all(f"| `{guard}` |" in section(page("events"), "GuardTripped") for guard in Guard)


@for_each(sorted(errors(), key=lambda kind: kind.__name__))
def test_every_error_has_the_section_named_in_its_type(error: type[HoldfastError]) -> None:
    documented = section(page("errors"), error.slug())

    assert error.title() in documented
    assert f"{error.status}" in documented
    assert f"exit code {error.exit_code}" in documented.lower()


def test_every_job_file_field_is_documented() -> None:
    documented = page("job-file")

    for word in (
        *JobFile.model_fields,
        *Resources.model_fields,
        *Recovery.model_fields,
        *GroupSpec.model_fields,
    ):
        assert f"`{word}`" in documented, word
    for model, prefix in (
        (HoldfastBlock, "holdfast"),
        (Checkpoint, "holdfast.checkpoint"),
        (Limits, "holdfast.limits"),
        (PlanSpec, "holdfast.plan"),
    ):
        for name, field in model.model_fields.items():
            word = field.alias or name
            assert f"{prefix}.{word}" in headings(documented), word


def test_every_state_is_described() -> None:
    shown = {str(state) for state in State if state is not State.ENDED} | set(Outcome)

    assert shown <= headings(page("states"))


def test_every_phase_of_the_bill_is_described() -> None:
    phases = {field.name for field in dataclasses.fields(Phases)} | {"waiting"}

    assert phases <= headings(page("bill"))


def test_every_exit_code_is_described() -> None:
    client, worker = (
        section(page("exit-codes"), "holdfast"),
        section(page("exit-codes"), "holdfast-worker run"),
    )

    for code in {0, 100, 103, 130} | {error.exit_code for error in errors()}:
        assert f"| {code} |" in client, code
    for code in Exit:
        assert f"| {code:d} |" in worker, code


def test_every_environment_variable_is_described() -> None:
    assert set(Env) | set(SkyEnv) <= headings(page("worker-environment"))


def test_every_route_is_described() -> None:
    services = Services(**dict.fromkeys(field.name for field in dataclasses.fields(Services)))
    paths = create_app(services).openapi()["paths"]
    routes = {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}
    documented = {
        name for name in headings(page("api")) if re.match(r"(GET|POST|PUT|PATCH|DELETE) /", name)
    }

    assert documented == routes | {"GET /openapi.json"}


def test_every_kind_of_report_is_described() -> None:
    assert all(f"`{kind}`" in page("api") for kind in ReportKind)


def test_every_audit_action_is_described() -> None:
    code = "".join(path.read_text() for path in (ROOT / "service").rglob("*.py"))
    named = re.findall(r'\baudit_action\(\s*"(\w+\.\w+)"(?: if \w+ else "(\w+\.\w+)")?', code)
    actions = {action for names in named for action in names if action}
    documented = set(re.findall(r"`(\w+\.\w+)`", section(page("people"), "The audit log")))

    assert len(actions) >= 15
    assert actions == documented


@for_each(PAGES, name=lambda path: path.relative_to(ROOT))
def test_links_have_existing_targets(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+://|mailto:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{target}: no such file"
        if anchor:
            names = headings(there.read_text())
            assert anchor in {_anchor(name) for name in names}, f"{target}: no such heading"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_page_is_reachable_from_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#\s]+\.md)\)", (DOCS / "index.md").read_text()))

    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - linked == {"index.md"}


@for_each(PAGES, name=lambda path: path.relative_to(ROOT))
def test_commands_in_the_docs_exist(path: Path) -> None:
    known = all_commands()
    for shown in re.findall(
        r"(?:^\$ |^|`)holdfast ([a-z]+(?:-[a-z]+)*(?: [a-z]+)?)", path.read_text(), re.MULTILINE
    ):
        first = shown.partition(" ")[0]
        assert f"holdfast {first}" in known or f"holdfast {shown}" in known, shown


@for_each(PAGES, name=lambda path: path.relative_to(ROOT))
def test_job_files_in_the_docs_are_valid(path: Path) -> None:
    for text in blocks(path.read_text(), "yaml"):
        if "run" in (words := yaml.safe_load(text) or {}):
            given = dict.fromkeys(words.get("secrets", {}), "as with --secret")
            parse_job_file(text, Overrides(base_dir="/", secrets=given))


@for_each(PAGES, name=lambda path: path.relative_to(ROOT))
def test_python_in_the_docs_is_valid(path: Path) -> None:
    for text in blocks(path.read_text(), "python"):
        ast.parse(text)


def test_readme_has_a_place_for_the_recording() -> None:
    before, begin, rest = (ROOT / "README.md").read_text().partition("<!-- demo:begin -->")
    recording, end, after = rest.partition("<!-- demo:end -->")

    assert begin
    assert end
    assert "```" in recording
    assert "make demo" in before + after
    assert "make test" in before + after
