"""Services for end-to-end tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.live_service import Service


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Service]:
    """A service that has not been started."""
    service = Service(tmp_path)
    yield service
    if service.process:
        service.end(signal.SIGTERM)
    service.sweep()


@pytest.fixture
def service(idle: Service) -> Service:
    """A running service."""
    idle.start()
    return idle
