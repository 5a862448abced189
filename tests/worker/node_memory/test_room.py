"""Copies of snapshots take no memory that the machine or a control group lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_worker.node_memory.room import Room, measure_room

GB = 10**9


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(content))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    meminfo = "MemTotal:       1000000 kB\nMemFree:  1 kB\nMemAvailable:    600000 kB\n"
    return write(tmp_path, {"proc/meminfo": meminfo})


def test_machine_without_control_groups_has_its_own_memory(root: Path) -> None:
    room = measure_room(root)

    assert room == Room(1_024_000_000, 614_400_000)
    assert room.usable_bytes == 614_400_000 - 102_400_000


@pytest.mark.parametrize(
    ("cgroup", "folder", "limit", "usage", "cached"),
    [
        ("0::/job/step", "sys/fs/cgroup/job/step", "memory.max", "memory.current", "inactive_file"),
        ("0::/job/step", "sys/fs/cgroup/job", "memory.max", "memory.current", "inactive_file"),
        ("0::/elsewhere", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "5:cpu:/\n4:memory,hugetlb:/job",
            "sys/fs/cgroup/memory/job",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_limit_of_a_control_group_applies(
    root: Path, cgroup: str, folder: str, limit: str, usage: str, cached: str
) -> None:
    write(
        root,
        {
            "proc/self/cgroup": cgroup,
            f"{folder}/{limit}": GB // 2,
            f"{folder}/{usage}": GB // 4,
            f"{folder}/memory.stat": f"anon 1\n{cached} 1000\n",
        },
    )

    assert measure_room(root) == Room(GB // 2, GB // 4 + 1000)


@pytest.mark.parametrize("limit", ["max", str(2**63 - 4096), "nonsense"])
def test_group_without_a_limit_does_not_count(root: Path, limit: str) -> None:
    folder = "sys/fs/cgroup"
    files = {"memory.max": limit, "memory.current": 5, "memory.stat": ""}
    write(root, {"proc/self/cgroup": "0::/", **{f"{folder}/{k}": v for k, v in files.items()}})

    assert measure_room(root).total_bytes == 1_024_000_000


def test_machine_that_states_nothing_has_no_room(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": ""})

    assert measure_room(tmp_path).usable_bytes == 0


def test_this_machine_states_its_memory() -> None:
    room = measure_room()

    assert 0 < room.free_bytes <= room.total_bytes
