"""Numbers as the dashboard has to display them, computed from API values independently."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal

from playwright.sync_api import Locator, Page

DOLLAR = 1_000_000


def dollars(micros: int) -> str:
    """Format an amount with cents, or with four decimals below a dollar."""
    digits = "0.0001" if 0 < abs(micros) < DOLLAR else "0.01"
    amount = (Decimal(micros) / DOLLAR).quantize(Decimal(digits), ROUND_HALF_UP)
    return f"${amount:,}"


def figure(place: Page | Locator, label: str) -> Locator:
    """The displayed figure with a label."""
    return place.get_by_role("button", name=re.compile(rf"^{re.escape(label)} .")).first
