"""A real service under six faults: limits hold, requests are answered, and everything continues when the fault is over.

No test fails for its time. With `pytest -s` each prints how long the answers and the limit took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TypeAlias

import pytest
from fault_injection.faults import (
    FaultReport,
    ServiceUnderFault,
    exhausted,
    filled,
    remote_jobs,
    run_fault,
    silent_server,
    small_disk,
    starved,
    stopped_inside_a_write,
)
from support.postgres import Cluster

Noted: TypeAlias = Callable[[FaultReport], FaultReport]
MOST_LINES = 150
"""Of the log during a fault; a traceback for each connection or look would be thousands."""


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    with silent_server() as url:
        yield url


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> str:
    return cluster.new_pattern_copy()


@pytest.fixture(scope="module")
def over_postgresql(tmp_path_factory: pytest.TempPathFactory, silent: str, url: str) -> Iterator[ServiceUnderFault]:  # fmt: skip
    with ServiceUnderFault(tmp_path_factory.mktemp("pg"), silent, url) as ground:
        yield ground


@pytest.fixture(scope="module")
def on_a_small_disk(
    tmp_path_factory: pytest.TempPathFactory, silent: str
) -> Iterator[ServiceUnderFault]:
    folder = tmp_path_factory.mktemp("small")
    with small_disk(folder / "disk") as disk:
        ground = ServiceUnderFault(folder, silent)
        ground.service.environment["HOLDFAST_HOME"] = str(disk / "home")
        with ground:
            yield ground


@pytest.fixture
def noted(request: pytest.FixtureRequest) -> Noted:
    """Print how long a service took, and check what holds under every fault."""

    def note(found: FaultReport) -> FaultReport:
        times = [
            f"{name} {getattr(found, name):.2f}" for name in ("ready_s", "cancel_s", "limit_s")
        ]
        print(request.node.name, *times)
        assert "bug" not in found.log
        assert "Traceback" not in found.log
        assert len(found.log.splitlines()) < MOST_LINES
        is_refused = found.cancel == 503 and "nothing was recorded" in found.cancel_told
        assert found.cancel == 202 or is_refused
        return found

    return note


def test_limits_hold_while_skypilot_is_silent(
    noted: Noted, over_postgresql: ServiceUnderFault
) -> None:
    found = noted(run_fault(over_postgresql, nullcontext, remote_jobs))

    assert (found.guard, found.is_held_during) == ("deadline", True)
    assert (found.ready, found.cancel) == (200, 202)


def test_limits_hold_once_a_frozen_postgresql_answers(
    noted: Noted, over_postgresql: ServiceUnderFault, cluster: Cluster
) -> None:
    found = noted(run_fault(over_postgresql, cluster.frozen))

    assert (found.guard, found.is_held_during) == ("max_cost", False)
    assert (found.ready, found.cancel) == (503, 503)
    assert "does not respond" in found.cancel_told


def test_limits_hold_while_no_connection_is_left(
    noted: Noted, over_postgresql: ServiceUnderFault, url: str
) -> None:
    found = noted(run_fault(over_postgresql, lambda: exhausted(url)))

    assert (found.guard, found.is_held_during) == ("max_cost", True)


def test_limits_hold_while_a_replica_is_stopped_in_a_write(
    noted: Noted, over_postgresql: ServiceUnderFault, tmp_path: Path, silent: str, url: str
) -> None:
    other = ServiceUnderFault(tmp_path, silent, f"{url}&application_name=other")
    other.service.environment["HOLDFAST_HOME"] = str(over_postgresql.service.home)

    with other:
        found = noted(
            run_fault(over_postgresql, lambda: stopped_inside_a_write(other.pid, url, "other"))
        )
        other.service.wait(other.is_ready, "it continues")

    assert (found.guard, found.is_held_during, found.ready) == ("max_cost", True, 200)
    assert "Traceback" not in other.log
    assert "bug" not in other.log


def test_limits_hold_once_a_full_disk_has_room(
    noted: Noted, on_a_small_disk: ServiceUnderFault
) -> None:
    disk = on_a_small_disk.service.folder / "disk"

    found = noted(run_fault(on_a_small_disk, lambda: filled(disk)))

    assert (found.guard, found.is_held_during) == ("max_cost", False)
    assert (found.ready, found.cancel) == (503, 503)
    assert "full" in found.cancel_told


def test_limits_hold_with_64_descriptors_and_more_callers(
    noted: Noted, on_a_small_disk: ServiceUnderFault
) -> None:
    port = on_a_small_disk.service.port

    found = noted(run_fault(on_a_small_disk, lambda: starved(on_a_small_disk.pid, port)))

    assert (found.guard, found.is_held_during) == ("max_cost", True)
    assert (found.ready, found.cancel) == (200, 202)
