"""Figures as the dashboard is to write them, computed from the API's own by other means."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal

from playwright.sync_api import Locator, Page

DOLLAR = 1_000_000


def dollars(micros: int) -> str:
    """An amount to the cent, and below a dollar to the hundredth of one."""
    digits = "0.0001" if 0 < abs(micros) < DOLLAR else "0.01"
    amount = (Decimal(micros) / DOLLAR).quantize(Decimal(digits), ROUND_HALF_UP)
    return f"${amount:,}"


def figure(place: Page | Locator, label: str) -> Locator:
    """The figure that a label stands above, by which it is named."""
    return place.get_by_role("button", name=re.compile(rf"^{re.escape(label)} .")).first
