"""The home directory of a real service is private under any umask."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.live_service import Service


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Start programs with this umask in the block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(home: Path) -> dict[str, str]:
    """Paths in a home that group or others may access, with their modes.

    Files below these folders may have any mode, since other accounts cannot enter the folders.
    """
    paths = [home, *home.iterdir(), *home.glob("launches/*")]
    return {str(path): oct(mode) for path in paths if (mode := path.stat().st_mode) & 0o077}


@pytest.mark.parametrize(
    "first",
    [
        ("serve",),
        *(
            pytest.param(words, marks=pytest.mark.full)
            for words in (("db", "upgrade"), ("db", "current"), ("up", "--stop"))
        ),
    ],
    ids=" ".join,
)
def test_fresh_home_is_private_under_any_umask(tmp_path: Path, first: tuple[str, ...]) -> None:
    service = Service(tmp_path)
    service.forks = False  # A fork would inherit the umask of its fork server.
    with umask(0):
        if first != service.words:
            assert service.cli(*first).returncode == 0
            assert open_to_others(service.home) == {}
        service.start()
    try:
        job = service.ended(service.submit(run="echo done"))
        names = {path.name for path in service.home.iterdir()}
    finally:
        service.end(signal.SIGTERM)

    assert job["state"] == "succeeded"
    assert names >= {"holdfast.db", "holdfast.db-wal", "secret", "token", "launches"}
    assert open_to_others(service.home) == {}
    assert "too open" not in (tmp_path / "service.log").read_text()
