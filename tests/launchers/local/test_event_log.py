"""The event log of a launch, as read back after crashes of its writers."""

from __future__ import annotations

from pathlib import Path

from holdfast.domain.events import Cause
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.launchers.local.event_log import LaunchEntry, LaunchEntryKind, LaunchLog, observe
from support.events import at

PLACED = {"zone": "a", "nodes": 1, "micros_per_hour": 5, "on_demand_micros_per_hour": 9}
LOST = {"cause": Cause.PREEMPTED, "detail": "taken"}
ENTRIES = [
    LaunchEntry(at(0), LaunchEntryKind.BEGUN),
    LaunchEntry(at(1), LaunchEntryKind.DENIED, {"zone": "b", "detail": "full"}),
    LaunchEntry(at(2), LaunchEntryKind.PLACED, PLACED),
    LaunchEntry(at(3), LaunchEntryKind.LOST, LOST),
    LaunchEntry(at(4), LaunchEntryKind.PLACED, PLACED),
    LaunchEntry(at(5), LaunchEntryKind.FORGOTTEN),
]


def test_appended_entries_are_read_back(tmp_path: Path) -> None:
    history = LaunchLog(tmp_path / "history.jsonl")

    for line in ENTRIES:
        history.append(line)

    assert history.read() == ENTRIES


def test_torn_line_is_skipped_and_the_next_one_is_read(tmp_path: Path) -> None:
    history = LaunchLog(tmp_path / "history.jsonl")
    history.append(ENTRIES[0])
    with history.path.open("a") as file:
        file.write('{"at": "2026-03-01T12:0')

    before = history.read()
    history.append(ENTRIES[1])

    assert before == ENTRIES[:1]
    assert history.read() == ENTRIES[:2]


def test_every_prefix_of_a_log_can_be_observed() -> None:
    statuses = [observe(ENTRIES[:length]).status for length in range(1, len(ENTRIES) + 1)]

    waiting, up, forgotten = LaunchStatus.WAITING, LaunchStatus.UP, LaunchStatus.FORGOTTEN
    assert statuses == [waiting, waiting, up, waiting, up, forgotten]


def test_observation_has_every_placement_and_denial() -> None:
    seen = observe(ENTRIES)

    assert (seen.since, seen.placements) == (at(5), 2)
    assert [(each.ready_at, each.lost_at, each.cause) for each in seen.recent_placements] == [
        (at(2), at(3), Cause.PREEMPTED),
        (at(4), None, None),
    ]
    assert [denial.zone for denial in seen.denials] == ["b"]
