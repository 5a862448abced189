"""What all tests of the worker stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from worker.stage import end_all


@pytest.fixture(autouse=True)
def _leave_no_process_behind() -> Iterator[None]:
    yield
    end_all()
