"""The SkyPilot version that Holdfast was developed and tested against."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.14.1"
SERIES: Final = "0.14."
"""Prefix of all supported versions."""
