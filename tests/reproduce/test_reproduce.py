"""The inputs of a reproduction are found, or the missing ones are named."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.errors import BadRequest, Unavailable
from holdfast.reproduce.comparison import ResultComparison, compare, machine_differences
from holdfast.reproduce.packages import build_python, requirements
from holdfast.reproduce.source import CodeOverride, script_mismatch, workdir_of
from holdfast.reproduce.task import read_evidence, rerun_task, task_of, with_requirements

MANIFEST: dict[str, Any] = {
    "format": 1,
    "git_commit": None,
    "git_dirty": None,
    "script": "train.py",
    "gpus": [],
    "torch": "2.13.0",
    "driver": "580.65",
    "lock": ["numpy==2.4.0", "torch==2.13.0+cu130", "holdfast-train==0.1.0"],
    "holdfast": {
        "job": "j1",
        "job_file": {
            "name": "tiny",
            "workdir": "/work",
            "run": "holdfast-worker run train.py",
            "resources": {"infra": "local"},
            "holdfast": {"tags": {"team": "nlp"}},
        },
    },
}


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, and a script in a directory."""
    top = tmp_path / "book"
    (top / "demos").mkdir(parents=True)
    (top / "demos/train.py").write_text("print(1)\n")
    git(tmp_path, "init", "-q", "book")
    git(top, "add", ".")
    git(top, "commit", "-qm", "begin")
    return top


def code_override(tmp_path: Path, *places: Path, **more: Any) -> CodeOverride:
    return CodeOverride(repositories=places, to=tmp_path / "then", **more)


def manifest_of(
    commit: str | None, *, is_dirty: bool = False, folder: str | None = None
) -> dict[str, Any]:
    """A manifest of a commit."""
    known = {**MANIFEST["holdfast"], "folder": folder}
    return {**MANIFEST, "git_commit": commit, "git_dirty": is_dirty, "holdfast": known}


def test_recorded_subfolder_is_found_in_the_checkout(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    nowhere, own = tmp_path / "nowhere", repository / "demos"

    result = workdir_of(
        manifest_of(commit, folder="demos"), "/work", code_override(tmp_path, nowhere, repository)
    )
    seen = workdir_of(
        manifest_of(commit), str(own), CodeOverride(repositories=[own], to=tmp_path / "too")
    )

    assert result == str(tmp_path / "then/demos")
    assert seen == str(tmp_path / "too/demos")
    assert (tmp_path / "then/demos/train.py").read_text() == "print(1)\n"


def test_a_job_without_a_folder_needs_no_code(tmp_path: Path) -> None:
    assert workdir_of(manifest_of(None), None, code_override(tmp_path)) is None


@pytest.mark.parametrize(
    ("manifest", "more", "remedy"),
    [
        (manifest_of(None), {}, "names no commit.*--as-is uses its directory"),
        (manifest_of("abc123", is_dirty=True), {}, "uncommitted changes; pass them with --patch"),
        (manifest_of("0" * 40), {}, "is in none of .*book: clone its repository.*--repo"),
        (manifest_of("HEAD"), {"to": "."}, "exists; name a folder that does not with --to"),
        (manifest_of("abc123"), {"as_is": True}, "the directory /gone does not exist here"),
    ],
)
def test_missing_source_is_reported_with_a_remedy(
    repository: Path, tmp_path: Path, manifest: dict[str, Any], more: dict[str, Any], remedy: str
) -> None:
    asked = {"repositories": [repository], "to": tmp_path / more.pop("to", "then"), **more}

    with pytest.raises(BadRequest, match=remedy):
        workdir_of(manifest, "/gone", CodeOverride(**asked))

    assert not (tmp_path / "then").exists()


def test_changed_script_in_current_directory_is_reported(repository: Path, tmp_path: Path) -> None:
    digest = "5f2a"
    workdir = workdir_of(manifest_of(None), str(repository), code_override(tmp_path, as_is=True))

    assert workdir == str(repository)
    assert script_mismatch(MANIFEST, workdir) is None, "no digest was recorded"
    problem = script_mismatch({**MANIFEST, "script_sha256": digest}, workdir)
    assert problem
    assert "train.py is not the original script" in problem


def test_rerun_task_is_tagged_and_uses_original_programs() -> None:
    task = rerun_task(MANIFEST, "/then/demos", Path("/then python/bin"))

    spec = parse_job_file(json.dumps(task)).spec
    assert spec.workdir == "/then/demos"
    assert spec.run.splitlines() == [
        "export PATH='/then python/bin':\"$PATH\"",
        "holdfast-worker run train.py",
    ]
    assert spec.holdfast.tags == {"team": "nlp", "reproduces": "j1"}
    assert "workdir" in MANIFEST["holdfast"]["job_file"], "the manifest itself is unchanged"


def test_remote_nodes_install_packages_before_their_own_setup() -> None:
    task = with_requirements({"run": "x", "setup": "echo mine"}, requirements(MANIFEST["lock"]))

    done = subprocess.run(["bash", "-n"], input=task["setup"], text=True, check=False)
    lines = task["setup"].splitlines()
    assert done.returncode == 0
    assert "torch==2.13.0+cu130" in lines
    assert lines[-1] == "echo mine"
    assert lines[-2].endswith("|| exit 1")


def test_torch_uses_its_own_index_and_holdfast_is_omitted() -> None:
    old = "holdfast==0.1.0"  # The package index has another project of this name.

    assert requirements([*MANIFEST["lock"], old]).splitlines() == [
        "--extra-index-url https://download.pytorch.org/whl/cu130",
        "numpy==2.4.0",
        "torch==2.13.0+cu130",
    ]


def test_unavailable_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    with pytest.raises(Unavailable, match=r"could not be installed: .*no-such-thing"):
        build_python(["no-such-thing==1.0"], tmp_path / "python")
    with pytest.raises(BadRequest, match="names no packages"):
        build_python([], tmp_path / "other")


def test_a_manifest_is_read_from_its_file_and_from_a_bundle(tmp_path: Path) -> None:
    plain, bundle = tmp_path / "m.json", tmp_path / "b.zip"
    plain.write_text(json.dumps(MANIFEST))
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("holdfast-j1/README.md", "x")
        archive.writestr("holdfast-j1/run_manifest.json", json.dumps(MANIFEST))

    assert read_evidence(plain) == read_evidence(bundle) == MANIFEST
    assert task_of(read_evidence(plain))["name"] == "tiny"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "is not a manifest: "),
        ("[]", "write one with holdfast manifest JOB --json"),
        ('{"a": 1}', "write one with holdfast manifest JOB --json"),
    ],
)
def test_invalid_manifest_is_rejected_with_a_reason(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "m.json"
    if content is not None:
        file.write_text(content)

    with pytest.raises(BadRequest, match=message):
        read_evidence(file)


def test_bundle_without_manifest_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("holdfast-j1/README.md", "x")

    with pytest.raises(BadRequest, match="its job reported none"):
        read_evidence(tmp_path / "b.zip")


def test_manifest_without_launch_is_rejected() -> None:
    with pytest.raises(BadRequest, match="does not contain the launch of its run"):
        task_of({"format": 1, "config": {}})


def test_machine_differences_are_listed_with_the_cause_first() -> None:
    here = {"torch": "2.13.1", "driver": None, "gpus": [], "lock": ["numpy==2.4.0"], "backends": {}}

    all_ = machine_differences(MANIFEST, with_packages=True, ask=lambda: json.dumps(here))
    without = machine_differences(MANIFEST, with_packages=False, ask=lambda: json.dumps(here))

    assert all_
    assert without
    assert [one.key for one in all_] == ["driver", "lock.torch", "torch", "lock.holdfast-train"]
    assert [one.key for one in without] == ["driver"]
    assert machine_differences(MANIFEST, with_packages=True, ask=lambda: "no torch") is None


RESULT = {"step": 20, "weights_sha256": "aa", "metrics": {"loss": 2.0, "acc": None}}


@pytest.mark.parametrize(
    ("before", "after", "comparison"),
    [
        (RESULT, RESULT, ResultComparison.IDENTICAL),
        (RESULT, {**RESULT, "weights_sha256": "bb"}, ResultComparison.CLOSE),
        (RESULT, {**RESULT, "weights_sha256": "bb", "metrics": {"loss": 2.01, "acc": None}}, ResultComparison.CLOSE),
        (RESULT, {**RESULT, "weights_sha256": "bb", "metrics": {"loss": 2.2, "acc": None}}, ResultComparison.OTHER),
        (RESULT, {**RESULT, "weights_sha256": "bb", "metrics": {"loss": 2.0}}, ResultComparison.CLOSE),
        (RESULT, {**RESULT, "weights_sha256": "bb", "metrics": {"acc": None}}, ResultComparison.OTHER),
        ({**RESULT, "metrics": {}}, {**RESULT, "weights_sha256": "bb", "metrics": {}}, ResultComparison.OTHER),
        (RESULT, {**RESULT, "step": 10}, ResultComparison.UNKNOWN),
        (RESULT, None, ResultComparison.UNKNOWN),
        (None, RESULT, ResultComparison.UNKNOWN),
    ],
)  # fmt: skip
def test_results_are_equal_close_or_different(
    before: Any, after: Any, comparison: ResultComparison
) -> None:
    assert compare(before, after, 0.01).outcome is comparison
