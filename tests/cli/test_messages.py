"""Error messages of the command line: position, cause and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.api.schemas.service import FlawOut, Problem
from holdfast.cli import output
from holdfast.cli.app import app
from holdfast.client import Refused
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.errors import BadJobFile, BadRequest
from holdfast.rendering import render
from typer.testing import CliRunner


def test_yaml_error_names_the_file_and_shows_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("torn.yaml").write_text("run: x\nresources: {infra: local\n\nnum_nodes: 2\n")

    for command in ("submit", "render", "prove"):
        refused = CliRunner().invoke(app, [command, "torn.yaml"]).exception
        assert isinstance(refused, BadJobFile)
        assert refused.detail == (
            "torn.yaml: is not YAML: line 4, column 10: did not find expected ',' or '}', "
            "while parsing a flow mapping that begins on line 2\n"
            "      2 | resources: {infra: local\n"
            "      4 | num_nodes: 2"
        )


def test_refused_value_is_named_without_the_schema(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "echo", print)
    flaw = FlawOut(pointer="#/role", message="Input should be 'viewer', 'member' or 'admin'")
    problem = Problem(
        type="/docs/errors#bad-request", title="Schema.", status=422, detail="x", errors=[flaw]
    )

    output.error(Refused(problem))

    assert capsys.readouterr().out == "holdfast: role: must be 'viewer', 'member' or 'admin'\n"


def test_unknown_state_lists_the_states() -> None:
    refused = CliRunner().invoke(app, ["ps", "--status", "flying"]).exception

    assert isinstance(refused, BadRequest)
    assert refused.detail.startswith("--status flying: must be one of queued, provisioning, ")


@pytest.mark.parametrize(("infra", "is_noted"), [("local", False), ("aws", True)])
def test_name_that_the_launcher_changes_is_noted(infra: str, is_noted: bool) -> None:
    spec = parse_job_file(f"name: my job\nrun: x\nresources: {{infra: {infra}}}").spec

    assert any("shows the job as my-job," in note for note in render(spec).notes) == is_noted
