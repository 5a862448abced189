"""Files for a server elsewhere: they arrive as SkyPilot's own client would send them, and as its server takes them."""

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
    """A folder of somebody's."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print(1)")
    return work


def arrived(harness: SkyPilotHarness, *sources: Path) -> Files:
    """What SkyPilot has after an upload, below where the first of it came from."""
    files = harness.server.files[do(upload(harness.launcher._client, sources))]
    return {os.path.relpath(path, sources[0]): what for path, what in files.items()}


def test_files_are_sent_once(harness: SkyPilotHarness, work: Path) -> None:
    blobs = {do(upload(harness.launcher._client, [work])) for _ in range(2)}

    [blob] = blobs
    assert list(harness.server.blobs) == [blob]
    assert hashlib.sha256(harness.server.blobs[blob]).hexdigest() == blob


def test_a_single_file_arrives(harness: SkyPilotHarness, work: Path) -> None:
    assert arrived(harness, work / "train.py") == {".": b"print(1)"}


def test_folders_arrive_though_nothing_is_in_them(harness: SkyPilotHarness, work: Path) -> None:
    (work / "out" / "deep").mkdir(parents=True)

    assert arrived(harness, work) == {
        ".": None,
        "train.py": b"print(1)",
        "out": None,
        "out/deep": None,
    }


def test_links_stay_links_and_lead_where_they_led(harness: SkyPilotHarness, work: Path) -> None:
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


def test_a_file_that_is_bigger_than_a_plain_zip_holds_arrives(
    harness: SkyPilotHarness, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    weights = os.urandom(2000)
    (work / "weights").write_bytes(weights)

    assert arrived(harness, work)["weights"] == weights


def test_a_source_that_is_not_there_is_refused_by_its_name(
    harness: SkyPilotHarness, work: Path
) -> None:
    with pytest.raises(LaunchRefused, match="nowhere is neither a file nor a directory"):
        do(upload(harness.launcher._client, [work, work / "nowhere"]))


def test_a_disk_that_is_full_refuses_nothing(
    harness: SkyPilotHarness, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(work / "no-such-folder"))

    with pytest.raises(LauncherUnreachable, match="cannot pack"):
        do(upload(harness.launcher._client, [work]))
