"""States of the simulated service that are created once for each test process, and copied afterwards."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from support.simulated_service import SimulatedService, WorldState

T = TypeVar("T")


@dataclass(frozen=True)
class _Snapshot:
    database: sqlite3.Connection
    world: WorldState
    result: Any
    """What the creating function returned."""


_snapshots: dict[Callable[[SimulatedService], Any], _Snapshot] = {}


def created_once(world: SimulatedService, create: Callable[[SimulatedService], T]) -> T:
    """Return what `create` returns, and leave the service in the same state.

    The first test of this process runs `create`, which takes about ten times as long as the copy that others get:
    with the same ids, at the same time. A service that is not new runs it again, as does one with PostgreSQL.
    """
    if world.services.engine.dialect.name != "sqlite" or not world.is_new:
        return create(world)
    if create not in _snapshots:
        _snapshots[create] = _save(world, create(world))
        return copy.deepcopy(_snapshots[create].result)
    found = _snapshots[create]
    with _database(world) as database:
        found.database.backup(database)
    world.restore(found.world)
    return copy.deepcopy(found.result)


def _save(world: SimulatedService, result: object) -> _Snapshot:
    saved = sqlite3.connect(":memory:", check_same_thread=False)
    with _database(world) as database:
        database.backup(saved)
    return _Snapshot(saved, world.state(), result)


@contextmanager
def _database(world: SimulatedService) -> Iterator[sqlite3.Connection]:
    """The connection of the service's database, as sqlite3 has it."""
    with closing(world.services.engine.raw_connection()) as pooled:
        assert isinstance(pooled.driver_connection, sqlite3.Connection)
        yield pooled.driver_connection
