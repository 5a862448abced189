"""Prices of nodes from AWS, SkyPilot's catalog and a bundled list; capacity hints of clouds."""

from __future__ import annotations

from holdfast.pricing.capacity_hints import open_capacity_hints
from holdfast.pricing.catalog import Catalog, open_catalog

__all__ = ["Catalog", "open_capacity_hints", "open_catalog"]
