"""A disk without space is reported."""

from __future__ import annotations

from pathlib import Path

from holdfast.host import resources


def test_disk_with_free_space_is_not_reported(tmp_path: Path) -> None:
    assert resources.disk_trouble([tmp_path], least_bytes=1) is None


def test_full_disk_is_reported_with_its_free_space(tmp_path: Path) -> None:
    result = resources.disk_trouble([tmp_path], least_bytes=1 << 80)

    assert result is not None
    assert result.startswith(f"the disk of {tmp_path} is full: ")


def test_read_only_disk_is_reported() -> None:
    result = resources.disk_trouble([Path("/sys")], least_bytes=0)

    assert result is None or "read-only" in result


def test_missing_directory_is_named_in_the_message(tmp_path: Path) -> None:
    result = resources.disk_trouble([tmp_path / "gone"])

    assert result is not None
    assert result.startswith(f"the directory {tmp_path / 'gone'} cannot be read")
