"""The build of the package: it is refused without the dashboard, which Node makes beforehand and no user has to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NeedsDashboard(BuildHookInterface):  # type: ignore[type-arg]
    """Looks for what `npm run build` writes."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Nothing, if the dashboard is there, or if this is only a path to the checkout.

        Raises:
            FileNotFoundError: it is not.
        """
        del build_data
        page = Path(self.root, "service/holdfast/web/index.html")
        if version != "editable" and not page.is_file():
            raise FileNotFoundError(
                f"{page} is missing: build the dashboard first, with make setup, or dashboard/npm.sh ci && dashboard/npm.sh run build"
            )
