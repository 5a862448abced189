"""Addresses at which workers and SkyPilot's server reach this service."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from holdfast.settings import Settings


def for_workers(settings: Settings, own: str) -> str:
    """The address for workers of a service that listens at `own`."""
    return settings.public_url or own


def for_skypilot(settings: Settings, own: str) -> str:
    """The address for SkyPilot's server, for admission requests and job nudges."""
    return (settings.skypilot_callback_url or for_workers(settings, own)).rstrip("/")


def is_here(url: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
