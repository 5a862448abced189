"""Control groups of local jobs, on directories that imitate the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.launchers.local.cgroup import DIRECTORY, ControlGroup, ControlGroups, open_groups
from holdfast.launchers.local.sandbox import Sandboxes


def machine(tmp_path: Path, *, controllers: str = "cpu memory pids", kind: str = "cgroup2") -> Path:
    """Create the mounts of a machine whose cgroup v2 file system is a directory."""
    root = tmp_path / "cgroup"
    for folder in (root, root / DIRECTORY):
        folder.mkdir()
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text("memory\n")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"24 30 0:22 / /proc rw,nosuid shared:5 - proc proc rw\n31 24 0:27 / {root} rw - {kind} none rw\n"
    )
    return mounts


def test_groups_are_opened_with_both_controllers(tmp_path: Path) -> None:
    groups = open_groups(machine(tmp_path))

    assert groups.folder == tmp_path / "cgroup" / DIRECTORY
    for folder in (groups.folder, groups.folder.parent):
        assert (folder / "cgroup.subtree_control").read_text() == "+pids"
    assert groups.path("job-1") == str(groups.folder / "job-1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cgroup"}, "this machine has no cgroup v2"),
        ({"controllers": "cpu pids"}, "has no controller memory"),
        ({"controllers": "hugetlb"}, "has no controller memory and pids"),
    ],
)
def test_missing_cgroup_support_is_reported(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    groups = open_groups(machine(tmp_path, **options))

    assert groups.folder is None
    assert groups.path("job-1") is None
    assert message in groups.unavailable_reason


def test_unusable_cgroup_directory_is_reported(tmp_path: Path) -> None:
    mounts = machine(tmp_path)
    (tmp_path / "cgroup" / DIRECTORY / "cgroup.subtree_control").unlink()

    assert "the service cannot use cgroup v2" in open_groups(mounts).unavailable_reason


def test_group_has_the_limits_of_its_job(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path / "job-1")

    group.create(memory_bytes=2**30, processes=64)

    written = {file.name: file.read_text() for file in group.path.iterdir()}
    assert written == {
        "memory.max": f"{2**30}",
        "memory.oom.group": "1",
        "memory.swap.max": "0",
        "pids.max": "64",
    }


def test_oom_kill_is_detected_from_memory_events(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path)
    assert not group.hit_memory_limit

    for count in (0, 2):
        (tmp_path / "memory.events").write_text(f"low 0\nmax 7\noom 1\noom_kill {count}\n")
        assert group.hit_memory_limit is (count > 0)


def test_sandbox_reports_the_limits_of_its_jobs(tmp_path: Path) -> None:
    def shares(memory_bytes: int | None, groups: ControlGroups) -> str:
        return Sandboxes(
            folder=tmp_path, memory_bytes=memory_bytes, processes=9, groups=groups
        ).shared_resources

    grouped, single = (
        ControlGroups(Path("/sys/fs/cgroup/holdfast")),
        ControlGroups(None, "it has no cgroup v2"),
    )
    assert "each with 2 GiB in total, enforced by /sys/fs/cgroup/holdfast" in shares(2**31, grouped)
    assert "2 GiB per process but no limit per job, because it has no" in shares(2**31, single)
    assert "HOLDFAST_LOCAL_MEMORY_GB is not set" in shares(None, grouped)
