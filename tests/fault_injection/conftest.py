"""Databases for fault injection."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support.postgres import PATIENT, Cluster, with_options

OpenEngine = Callable[[str], Engine]


@pytest.fixture
def fast_sqlite(pattern: Path, tmp_path: Path, open_engine: OpenEngine) -> list[Engine]:
    """Two engines on one SQLite database."""
    url = f"sqlite:///{shutil.copy(pattern, tmp_path)}"
    return [open_engine(url), open_engine(url)]


@pytest.fixture
def postgresql(cluster: Cluster, open_engine: OpenEngine) -> list[Engine]:
    """Two engines on one PostgreSQL database."""
    url = with_options(cluster.new_pattern_copy(), PATIENT)
    return [open_engine(url), open_engine(url)]
