"""Accessibility violations of a page, found by axe-core."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from playwright.sync_api import Page
from support.requirements import skip_or_fail

_AXE = Path(__file__).parents[2] / "dashboard/node_modules/axe-core/axe.min.js"


@cache
def _source() -> str:
    if not _AXE.is_file():
        skip_or_fail("needs axe-core; run dashboard/npm.sh ci")
    return _AXE.read_text()


def violations(page: Page) -> list[str]:
    """List the violated rules and the violating elements."""
    page.evaluate(_source())
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {rule['help']}: {', '.join(str(node['target']) for node in rule['nodes'])}"
        for rule in result["violations"]
    ]
