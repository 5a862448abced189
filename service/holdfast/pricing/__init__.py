"""Prices of nodes: current AWS prices, SkyPilot's catalog, and the bundled price list."""

from __future__ import annotations

from holdfast.pricing.catalog import Catalog, open_catalog

__all__ = ["Catalog", "open_catalog"]
