"""What a model receives: bounded, without job files, and errors with their remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast.api.schemas.jobs import EventOut
from holdfast.errors import BadJobFile, BadRequest, NotFound, ValidationIssue
from holdfast.mcp_server.job_folder import JobFolder
from holdfast.mcp_server.results import (
    MAX_RESULT_CHARS,
    MAX_VALUE_CHARS,
    bounded_json,
    error_text,
    event_rows,
)
from support.fakes import FixedClock


@pytest.mark.parametrize(("name", "first"), [("lines", 4000), ("jobs", 0)])
def test_long_list_loses_its_least_important_items(name: str, first: int) -> None:
    text = bounded_json({name: [f"{number:05} {'x' * 40}" for number in range(5000)], "total": 1})

    found = json.loads(text)
    assert len(text) <= MAX_RESULT_CHARS
    assert len(found[name]) > 300
    assert len(found[name]) + found[f"{name}_left_out"] == 5000
    assert int(found[name][0][:5]) >= first
    assert (int(found[name][-1][:5]) == 4999) == (name == "lines")
    assert found["total"] == 1


def test_long_text_is_cut_before_others_are_lost() -> None:
    found = json.loads(bounded_json([{"text": "x" * 100_000}, {"text": "short"}]))

    assert [len(item["text"]) for item in found["items"]] == [MAX_VALUE_CHARS, 5]
    assert found["items"][0]["text"].endswith("... (cut)")


def test_object_that_cannot_be_shortened_is_cut() -> None:
    text = bounded_json({str(number): "x" * 100 for number in range(1000)})

    assert len(text) == MAX_RESULT_CHARS


def test_event_is_listed_without_the_job_file() -> None:
    at = FixedClock().now()
    body = {"spec": {"envs": {"KEY": "private"}}, "task": "private", "name": "tiny"}
    event = EventOut(cursor=1, job_id="j1", seq=1, kind="Submitted", source="person", at=at, recorded_at=at, body=body)  # fmt: skip

    assert "private" not in bounded_json(event_rows([event]))
    assert "tiny" in bounded_json(event_rows([event]))


def test_error_names_all_mistakes_and_the_remedy() -> None:
    issues = (ValidationIssue("#/run", "is missing"), ValidationIssue("#/nodes", "is unknown"))

    assert error_text(BadJobFile(issues)).splitlines()[1:] == [
        "#/run: is missing",
        "#/nodes: is unknown",
        "The job file has mistakes; nothing was submitted.",
    ]
    assert error_text(NotFound("no job x")) == "not-found: no job x\nThe resource does not exist."


@pytest.mark.parametrize("file", ["../outside.yaml", "/etc/hosts.yaml", "link.yaml", "a\0.yaml"])
def test_job_file_elsewhere_is_not_read(tmp_path: Path, file: str) -> None:
    (tmp_path / "outside.yaml").write_text("run: x\n")
    (inside := tmp_path / "inside").mkdir()
    (inside / "link.yaml").symlink_to(tmp_path / "outside.yaml")

    with pytest.raises(BadRequest, match=r"is not below .*inside|is not a path"):
        JobFolder(inside).read(file)


def test_only_small_yaml_files_are_read(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    (tmp_path / "id_rsa").write_text("private")
    (tmp_path / "large.yaml").write_text("x" * 2_000_000)
    (tmp_path / "good.yaml").write_text("run: x\nworkdir: code\n")

    with pytest.raises(BadRequest, match=r"does not end in \.yaml"):
        folder.read("id_rsa")
    with pytest.raises(BadRequest, match="more than 1 MiB"):
        folder.read("large.yaml")
    task = folder.read("good.yaml", "renamed")
    assert (task.name, task.base_dir) == ("renamed", str(tmp_path))
    folder.check_workdir(task)


def test_code_elsewhere_is_not_uploaded(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("run: x\nworkdir: ~/.ssh\n")
    folder = JobFolder(tmp_path)

    with pytest.raises(BadRequest, match=r"workdir: .* is not below"):
        folder.check_workdir(folder.read("train.yaml"))
