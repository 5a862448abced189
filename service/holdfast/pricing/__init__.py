"""Prices of nodes: AWS as it is now, SkyPilot's catalog where there is one, and the list that this version brings along."""

from __future__ import annotations

from holdfast.pricing.catalog import Catalog, open_catalog

__all__ = ["Catalog", "open_catalog"]
