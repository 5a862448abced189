"""`holdfast-worker checkpoints`: list, verify and export."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from fake_s3 import FakeS3
from holdfast_worker.__main__ import main
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.storage.directory import DirectoryStore
from safetensors.torch import load_file
from support.cloud_servers import CloudServer
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from worker.support.stores import RankGroup

JOB = "mine"


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Address of a store with two checkpoints of two ranks."""
    group = RankGroup(DirectoryStore(tmp_path / "store" / JOB), tmp_path / "spool")
    group.archive.tokens.claim(1, f"{1:08x}", float("inf"))
    group.save(10)
    group.save(20)
    return f"file://{tmp_path}/store/{JOB}"


def run_command(*arguments: str | Path) -> int:
    """Run a command and return its exit code."""
    with pytest.raises(SystemExit) as left:
        main(["checkpoints", *map(str, arguments)])
    return int(left.value.code or 0)


def test_ls_lists_checkpoints_newest_first(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("ls", place) == Exit.DONE
    head, *rows = capsys.readouterr().out.splitlines()
    assert run_command("ls", place, "--json") == Exit.DONE
    listed = json.loads(capsys.readouterr().out)

    assert head.split() == ["STEP", "AGE", "SIZE", "RANKS", "EPOCH", "STATE"]
    assert [row.split()[0] for row in rows] == ["20", "10"]
    assert [(item["step"], item["world_size"], item["flaw"]) for item in listed] == [
        (20, 2, None),
        (10, 2, None),
    ]


@pytest.mark.parametrize("kind", ["google", "azure"])
def test_checkpoints_of_other_clouds_are_verified_and_exported(
    kind: str,
    s3: FakeS3,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server: CloudServer = request.getfixturevalue(kind)
    group = RankGroup(server.open(monkeypatch, job=JOB), tmp_path / "spool")
    group.archive.tokens.claim(1, f"{1:08x}", float("inf"))
    group.save(10)
    group.save(20)
    place, weights = f"{server.runs}/{JOB}", tmp_path / "weights.safetensors"
    [part] = [key for key in s3.keys("bucket") if "/step-20-" in key and "/rank-1/" in key]

    assert run_command("ls", place, "--json") == Exit.DONE
    listed = json.loads(capsys.readouterr().out)
    assert run_command("verify", place) == Exit.DONE
    assert run_command("export", place, weights, "--form", "safetensors") == Exit.DONE
    s3.corrupt("bucket", part)
    capsys.readouterr()
    assert run_command("verify", place) == 1

    assert [item["step"] for item in listed] == [20, 10]
    assert load_file(weights)
    assert "step-20-" in capsys.readouterr().out


def test_verify_reads_every_byte(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [part] = (tmp_path / "store").rglob("step-20-*/rank-1/*")
    assert run_command("verify", place) == Exit.DONE
    capsys.readouterr()

    changed = bytearray(part.read_bytes())
    changed[-1] ^= 1
    part.write_bytes(changed)

    assert run_command("verify", place) == Exit.FAILED
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] step-20-")
    assert "differs from the committed one" in first
    assert second.endswith(": intact")


def test_exported_file_is_readable_without_holdfast(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {form: tmp_path / form for form in ("torch", "safetensors", "dcp")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form, file in files.items():
            assert run_command("export", place, file, "--form", form) == Exit.DONE
    assert run_command("export", place, tmp_path / "older", "--step", "10") == Exit.DONE
    dcp_to_torch_save(files["dcp"], tmp_path / "again")

    left = torch.full((300,), 20.0)
    output = capsys.readouterr()
    assert output.out == ""
    assert f"exported step-20-e1-000000010002 to {files['torch']}" in output.err
    assert torch.equal(torch.load(files["torch"], weights_only=True)["model"]["left"], left)
    assert torch.equal(load_file(files["safetensors"])["model.left"], left)
    assert torch.equal(torch.load(tmp_path / "again", weights_only=True)["model"]["left"], left)
    assert torch.load(tmp_path / "older", weights_only=True)["step"] == 10


@pytest.mark.parametrize(
    ("command", "code"),
    [("ls", Exit.DONE), ("verify", Exit.FAILED), ("export", Exit.FAILED)],
)
def test_empty_store_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, code: Exit
) -> None:
    arguments = [tmp_path / "file"] if command == "export" else []

    assert run_command(command, f"file://{tmp_path}/{JOB}", *arguments) == code

    output = capsys.readouterr()
    assert (output.out, f"file://{tmp_path}/{JOB} has no" in output.err) == ("", True)


def test_invalid_address_is_refused_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("ls", "ftp://somewhere/mine") == Exit.UNUSABLE_STORE
    assert "ftp://somewhere/mine cannot be read" in capsys.readouterr().err
