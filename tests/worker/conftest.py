"""What all tests of the worker stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker.stage import LESSON, TOTAL, Stage, end_all


@pytest.fixture(autouse=True)
def _leave_no_process_behind() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A run of two ranks that nobody disturbed."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    assert stage.run_ranks(2, LESSON, TOTAL) == [0, 0]
    return stage
