"""Databases for storms."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast.store.database import open_database, upgrade
from postgres import Cluster
from sqlalchemy import Engine, event

OpenEngine = Callable[[str], Engine]


@pytest.fixture(scope="session")
def fresh_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with the tables, made once."""
    file = tmp_path_factory.mktemp("fresh") / "holdfast.db"
    engine = open_database(f"sqlite:///{file}")
    upgrade(engine)
    engine.dispose()
    return file


@pytest.fixture
def fast_sqlite(fresh_file: Path, tmp_path: Path, open_engine: OpenEngine) -> list[Engine]:
    """Two doors to a SQLite without its care for power cuts, which no storm here brings."""

    def hurry(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    url = f"sqlite:///{shutil.copy(fresh_file, tmp_path)}"
    engines = [open_engine(url), open_engine(url)]
    for engine in engines:
        event.listen(engine, "connect", hurry)
    return engines


@pytest.fixture
def postgresql(cluster: Cluster, open_engine: OpenEngine) -> list[Engine]:
    """Two doors to a PostgreSQL database."""
    url = cluster.new_database()
    engines = [open_engine(url), open_engine(url)]
    upgrade(engines[0])
    return engines
