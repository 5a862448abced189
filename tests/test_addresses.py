"""The URLs of this service for workers and SkyPilot, and the recognition of local URLs."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast import addresses
from holdfast.settings import Settings

OWN = "http://127.0.0.1:8642"
PUBLIC = {"public_url": "https://holdfast.example.com/"}


@pytest.mark.parametrize(
    ("configured", "workers", "skypilot"),
    [
        ({}, OWN, OWN),
        (PUBLIC, "https://holdfast.example.com/", "https://holdfast.example.com"),
        ({"skypilot_callback_url": "http://holdfast:8642/"}, OWN, "http://holdfast:8642"),
        (
            {**PUBLIC, "skypilot_callback_url": "http://holdfast:8642"},
            "https://holdfast.example.com/",
            "http://holdfast:8642",
        ),
    ],
)
def test_skypilot_uses_the_worker_address_unless_overridden(
    configured: dict[str, Any], workers: str, skypilot: str
) -> None:
    settings = Settings(**configured)

    assert addresses.for_workers(settings, OWN) == workers
    assert addresses.for_skypilot(settings, OWN) == skypilot


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("http://127.0.0.1:8642", True),
        ("http://localhost", True),
        ("http://[::1]:8642", True),
        ("http://127.1.2.3", True),
        ("http://192.0.2.1", False),
        ("https://localhost.example.com", False),
        ("http://[::1", False),
        ("", False),
    ],
)
def test_loopback_url_is_recognized(url: str, is_here: bool) -> None:
    assert addresses.is_here(url) is is_here
