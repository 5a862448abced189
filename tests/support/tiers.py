"""Tiers of the tests: which of them `make test` runs, and which `make test-all` adds.

A test belongs to the added tier if it is marked `full` (it repeats on a larger scale what a test of the first
tier shows), or if it repeats on PostgreSQL a test that also runs on SQLite, outside of the packages with
separate code for PostgreSQL.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final

import pytest
from holdfast.clock import SystemClock

TIER: Final = "HOLDFAST_TEST_TIER"
"""Environment variable: the tier that runs."""
UNTIL: Final = "HOLDFAST_TEST_UNTIL"
"""Environment variable: time in seconds since the epoch after which tests are skipped."""
POSTGRES_SPECIFIC: Final = (
    "tests/migrations/",
    *(
        f"tests/store/test_{subject}.py"
        for subject in (
            "backups",
            "database",
            "fair_lock",
            "journal",
            "leases",
            "metrics",
            "mixed_versions",
            "postgres",
            "queries",
            "report_batches",
            "report_ingest",
        )
    ),
)
"""Tests of code that treats PostgreSQL differently from SQLite: transactions, locks and SQL of its own."""


class Tier(StrEnum):
    """Value of the environment variable HOLDFAST_TEST_TIER."""

    TEST = "test"
    """What `make test` runs: every behavior once."""
    ADDED = "added"
    """What only `make test-all` runs."""
    ALL = "all"


class Tiers:
    """A plugin that deselects tests of the other tier and skips tests that would start too late."""

    def __init__(self) -> None:
        self._tier = Tier(os.environ.get(TIER, Tier.ALL))
        self._until = float(os.environ.get(UNTIL) or "inf")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect the tests of the other tier."""
        if self._tier is Tier.ALL:
            return
        wants_added = self._tier is Tier.ADDED
        left_out = [item for item in items if is_added(item) != wants_added]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_added(item) == wants_added]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Skip a test that would start too late."""
        if SystemClock().now().timestamp() > self._until:
            pytest.skip(f"not run: the time of this run is over ({UNTIL})")


def is_added(item: pytest.Item) -> bool:
    """Whether only `make test-all` runs a test."""
    if item.get_closest_marker("full"):
        return True
    callspec = getattr(item, "callspec", None)
    repeats = callspec is not None and callspec.params.get("database_url") == "postgresql"
    return repeats and not item.nodeid.startswith(POSTGRES_SPECIFIC)
