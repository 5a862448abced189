"""Services for the tests that need a whole one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.live_service import Service


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Service]:
    """A service that was not started yet."""
    service = Service(tmp_path)
    yield service
    if service.process:
        service.end(signal.SIGTERM)
    service.sweep()


@pytest.fixture
def service(idle: Service) -> Service:
    """A service that runs."""
    idle.start()
    return idle
