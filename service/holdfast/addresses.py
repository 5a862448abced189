"""Where this service is reached: by workers on their nodes, and by SkyPilot's server."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from holdfast.settings import Settings


def for_workers(settings: Settings, own: str) -> str:
    """Where workers reach the service that listens at the address `own`."""
    return settings.public_url or own


def for_skypilot(settings: Settings, own: str) -> str:
    """Where SkyPilot's server reaches it: to ask before each launch, and to tell of each turn of a job."""
    return (settings.skypilot_callback_url or for_workers(settings, own)).rstrip("/")


def is_here(url: str) -> bool:
    """Whether an address is one of this machine alone."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
