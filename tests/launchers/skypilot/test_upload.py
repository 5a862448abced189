"""Uploads to a remote SkyPilot server, as SkyPilot's own client sends them."""

from __future__ import annotations

import hashlib
import os
import socket
import zipfile
from pathlib import Path

import pytest
from fake_skypilot.files import Files
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.upload import upload
from support.skypilot.launcher import NewSkyPilotHarness, SkyPilotHarness, do


@pytest.fixture
def harness(new_harness: NewSkyPilotHarness) -> SkyPilotHarness:
    return new_harness()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A user's working directory."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print(1)")
    return work


def arrived(harness: SkyPilotHarness, *sources: Path) -> Files:
    """The files that SkyPilot has after an upload, below the parent of the first source."""
    files = harness.server.files[do(upload(harness.launcher._client, sources))]
    return {os.path.relpath(path, sources[0]): what for path, what in files.items()}


def test_files_are_sent_once(harness: SkyPilotHarness, work: Path) -> None:
    blobs = {do(upload(harness.launcher._client, [work])) for _ in range(2)}

    [blob] = blobs
    assert list(harness.server.blobs) == [blob]
    assert hashlib.sha256(harness.server.blobs[blob]).hexdigest() == blob


def test_single_file_is_uploaded(harness: SkyPilotHarness, work: Path) -> None:
    assert arrived(harness, work / "train.py") == {".": b"print(1)"}


def test_empty_folders_are_uploaded(harness: SkyPilotHarness, work: Path) -> None:
    (work / "out" / "deep").mkdir(parents=True)

    assert arrived(harness, work) == {
        ".": None,
        "train.py": b"print(1)",
        "out": None,
        "out/deep": None,
    }


def test_links_are_uploaded_with_their_targets(harness: SkyPilotHarness, work: Path) -> None:
    (work / "data").mkdir()
    for name, target in {
        "file": "train.py",
        "folder": "data",
        "broken": "gone",
        "absolute": work / "data",
        "elsewhere": "/etc/hosts",
        "above-the-root": "../" * 40 + "etc/hosts",
    }.items():
        (work / name).symlink_to(target)

    files = arrived(harness, work)

    up_to_root = os.path.relpath("/", work)
    assert files == {
        ".": None,
        "train.py": b"print(1)",
        "data": None,
        "file": "train.py",
        "folder": "data",
        "broken": "gone",
        "absolute": "data",
        "elsewhere": f"{up_to_root}/etc/hosts",
        "above-the-root": f"{up_to_root}/etc/hosts",
    }


def test_symlinked_workdir_uploads_its_target(harness: SkyPilotHarness, work: Path) -> None:
    named = work.with_name("named")
    named.symlink_to(work)

    assert arrived(harness, named) == {".": None, "train.py": b"print(1)"}


def test_pipes_and_sockets_are_not_uploaded(harness: SkyPilotHarness, work: Path) -> None:
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(work / "socket"))

        assert arrived(harness, work) == {".": None, "train.py": b"print(1)"}


def test_file_above_the_zip32_limit_is_uploaded(
    harness: SkyPilotHarness, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    weights = os.urandom(2000)
    (work / "weights").write_bytes(weights)

    assert arrived(harness, work)["weights"] == weights


def test_missing_source_is_refused_with_its_name(harness: SkyPilotHarness, work: Path) -> None:
    with pytest.raises(LaunchRefused, match="nowhere is neither a file nor a directory"):
        do(upload(harness.launcher._client, [work, work / "nowhere"]))


def test_full_disk_does_not_refuse_the_launch(
    harness: SkyPilotHarness, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(work / "no-such-folder"))

    with pytest.raises(LauncherUnreachable, match="cannot pack"):
        do(upload(harness.launcher._client, [work]))
