"""Answers that a browser waits for, as from a service that is slow."""

from __future__ import annotations

from playwright.sync_api import Route


class Holding:
    """Keeps requests until they are let go: `page.route(url, holding.hold)`."""

    def __init__(self) -> None:
        self._held: list[Route] = []

    def hold(self, route: Route) -> None:
        """Keep a request."""
        self._held.append(route)

    def let_go(self) -> None:
        """Have those that were kept answered."""
        for route in self._held:
            route.continue_()

    def cut_off(self) -> None:
        """Have those that were kept fail."""
        for route in self._held:
            route.abort()
