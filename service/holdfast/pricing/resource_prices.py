"""Reads the prices of storage, requests, egress and disks: the bundled list, and a file of one's own."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from holdfast.domain.charges.resource_prices import ResourcePrices
from holdfast.domain.jobfile.bounded_yaml import NotReadable, load
from holdfast.errors import BadRequest

SETTING: Final = "HOLDFAST_RESOURCE_PRICES"
"""The setting that names the file."""


@cache
def bundled_resource_prices() -> ResourcePrices:
    """Return the prices bundled in the wheel."""
    name = "resource_prices.yaml"
    file = resources.files("holdfast.domain.charges") / name
    return ResourcePrices.parse(load(file.read_text(encoding="utf-8")), name)


def open_resource_prices(own: Path | None) -> ResourcePrices:
    """Return the prices in a file of one's own, and for what it lacks the bundled ones.

    Raises:
        BadRequest: the file cannot be read, or a price in it is invalid; the message names it.
    """
    bundled = bundled_resource_prices()
    if own is None:
        return bundled
    where = f"{SETTING}={own}"
    try:
        raw = load(own.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"{where}: cannot be read: {error.strerror}; correct the path") from error
    except (UnicodeDecodeError, NotReadable) as error:
        raise BadRequest(f"{where}: is not YAML: {error}; correct the file") from error
    return bundled.with_own(ResourcePrices.parse(raw, where))
