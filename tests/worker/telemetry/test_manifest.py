"""The manifest of a run: code, packages, machines and configuration."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.config import Config
from holdfast_worker.telemetry.manifest import (
    MAX_CONFIG_CHARS,
    Manifest,
    _transport,
    installed_packages,
)
from torch import nn
from torch.utils.data import DataLoader

SCRIPT = """
import json
from holdfast_worker import Run
run = Run.start()
run.describe(lr=3e-4, epochs=50)
print(json.dumps(run.manifest()))
"""
EXACT = {"config", "world_size", "gpus_per_node", "git_commit", "torch", "cuda"}
"""Keys that other tools also write to such files and read."""


def collect_manifest(folder: Path, **env: str) -> dict[str, Any]:
    """The manifest of a script in a folder."""
    (folder / "train.py").write_text(SCRIPT)
    run = [sys.executable, "train.py"]
    done = subprocess.run(
        run,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    manifest: dict[str, Any] = json.loads(done.stdout)
    return manifest


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.com"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_manifest_describes_code_packages_and_machines(tmp_path: Path) -> None:
    manifest = collect_manifest(
        tmp_path,
        HOLDFAST_SEED="7",
        OMP_NUM_THREADS="1",
        TORCH_FR_DUMP_TEMP_FILE="/tmp/run-7",
        HF_TOKEN="hush",
    )

    assert manifest.keys() >= EXACT
    assert manifest["config"] == {"lr": 0.0003, "epochs": 50}
    assert (manifest["world_size"], manifest["nodes"], manifest["seed"]) == (1, 1, 7)
    assert manifest["torch"] == torch.__version__
    assert manifest["environment"] == {"OMP_NUM_THREADS": "1"}
    assert "hush" not in json.dumps(manifest)
    assert (manifest["git_commit"], manifest["git_dirty"]) == (None, None), "there is no repository"


def test_manifest_records_the_commit_and_uncommitted_changes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    manifest = Manifest(Config.read({}), script=script)
    git(tmp_path, "init", "-q")
    before = manifest.collect(torch.device("cpu"))
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "begin")

    (tmp_path / "notes.txt").write_text("git does not know of it")
    clean = manifest.collect(torch.device("cpu"))
    script.write_text(f"{SCRIPT}# changed\n")
    changed = manifest.collect(torch.device("cpu"))

    assert before["git_commit"] is None, "nothing was committed yet"
    assert clean["git_commit"] == changed["git_commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert (clean["git_dirty"], changed["git_dirty"]) == (False, True)
    assert clean["script_sha256"] != changed["script_sha256"]


def test_manifest_records_loader_options_if_available() -> None:
    manifest = Manifest(Config.read({}))

    manifest.add_loader([1, 2])
    of_a_list = manifest.collect(torch.device("cpu"))["loader"]
    manifest.add_loader(DataLoader([1, 2], batch_size=2))
    of_a_loader = manifest.collect(torch.device("cpu"))["loader"]

    assert of_a_list == {}
    assert of_a_loader == {"batch_size": 2, "num_workers": 0, "pin_memory": False}


def test_manifest_names_objects_with_a_state_for_each_rank() -> None:
    manifest = Manifest(Config.read({}))
    before = manifest.collect(torch.device("cpu"))["per_rank"]
    both = {"model": nn.Linear(1, 1), "sampler": nn.Linear(1, 1)}

    manifest.tracked = TrackedState(both, per_rank=["sampler"])

    assert before is None
    assert manifest.collect(torch.device("cpu"))["per_rank"] == ["sampler"]


def test_lock_has_the_versions_that_python_reports() -> None:
    found = dict(str(line).split("==") for line in installed_packages())

    assert found == {name: metadata.version(name) for name in found}
    assert len(found) > 50


def test_lock_reads_fields_in_any_case_and_ignores_descriptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd-1.dist-info").mkdir()
    text = "Metadata-Version: 2.1\nname: Odd_Package\nVERSION:  1.0 \n\nName: other\nVersion: 2\n"
    (tmp_path / "odd-1.dist-info/METADATA").write_text(text)
    (tmp_path / "nameless-1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert installed_packages() == ["odd-package==1.0"]


def test_lock_names_each_package_once_in_normalized_form() -> None:
    names = [str(line).partition("==")[0] for line in installed_packages()]

    assert f"torch=={torch.__version__}" in installed_packages()
    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert not [name for name in names if "_" in name or name != name.lower()]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (math.nan, "NaN"),
        (Path("/data"), "/data"),
        ("a\0b", "a?b"),
        ({"deep": [1, None]}, {"deep": [1, None]}),
    ],
)
def test_config_values_that_json_cannot_hold_become_text(value: object, kept: object) -> None:
    manifest = Manifest(Config.read({}))
    manifest.add_config({"it": value})

    config = manifest.collect(torch.device("cpu"))["config"]
    assert isinstance(config, Mapping)
    assert config["it"] == kept


def test_configuration_with_data_is_refused_on_every_rank() -> None:
    """Only rank 0 writes it to a manifest; a refusal there alone would leave the others waiting."""
    manifest = Manifest(Config.read({}))

    with pytest.raises(ValueError, match="describe settings, not data"):
        manifest.add_config({"data": "x" * MAX_CONFIG_CHARS})

    assert manifest.collect(torch.device("cpu"))["config"] == {}


TOPOLOGY = """\tGPU0\tGPU1\tGPU2\tCPU Affinity
GPU0\t X \tNV12\tSYS\t0-31
GPU1\tNV12\t X \tSYS\t0-31
GPU2\tSYS\tSYS\t X \t32-63
"""


def test_links_between_gpus_are_read_from_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topology").write_text(TOPOLOGY)
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$*" = "topo -m" ] && exec cat {tmp_path}/topology\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    found = _transport(Config.read({}))

    assert found["gpu_links"] == {"NV12": 1, "SYS": 2}


def test_manifest_without_git_has_what_is_often_omitted(tmp_path: Path) -> None:
    manifest = collect_manifest(tmp_path, PATH="/nonexistent", HOLDFAST_SEED="7")

    assert (manifest["git_commit"], manifest["git_dirty"], manifest["seed"]) == (None, None, 7)
    assert manifest.keys() >= {"nccl", "driver", "nccl_transport", "lock", "script_sha256"}
