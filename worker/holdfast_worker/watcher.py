"""The watcher: asks the cloud, beside everything else, whether it is about to take this node. Standard library only."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Final

from holdfast_worker.clouds import Cloud, Rebalance, Taking, find_cloud
from holdfast_worker.console import tell
from holdfast_worker.metadata import Metadata, Silent

LONGEST_PAUSE_S: Final = 10.0
"""Between two looks at a service that stopped to answer. Longer may sleep through a notice, shorter hammers it."""


class Watcher:
    """A thread that watches for one node, until the end or until the cloud says that it takes the node."""

    def __init__(self, metadata: Metadata, cloud: str | None) -> None:
        """Watch through `metadata`; `cloud` is the name that the launcher gave, None to find out."""
        self._metadata = metadata
        self._cloud = cloud
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-watcher", daemon=True)
        self.taking: Taking | None = None
        """The notice, once there is one."""
        self.rebalance_at: datetime | None = None
        """Since when the cloud says that it may take the node before long; None while it does not."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. A question under way is not waited for."""
        self._closing.set()

    def _run(self) -> None:
        cloud = find_cloud(self._metadata, self._cloud)
        pause_s = cloud.pause_s if cloud else 0.0
        while cloud and not self.taking and not self._closing.is_set():
            try:
                self._look(cloud)
            except (Silent, AttributeError, TypeError) as trouble:
                # It may be busy, or say what nobody understands: the next answer may be better.
                pause_s = self._slow_down(cloud, pause_s, trouble)
            else:
                pause_s = cloud.pause_s
            self._closing.wait(pause_s)

    def _look(self, cloud: Cloud) -> None:
        for omen in cloud.look():
            match omen:
                case Taking():
                    self.taking = omen
                case Rebalance(at):
                    self.rebalance_at = self.rebalance_at or at

    def _slow_down(self, cloud: Cloud, pause_s: float, trouble: Exception) -> float:
        if pause_s == cloud.pause_s:
            tell(f"{cloud.name} does not say whether it will take this node: {trouble}")
        return min(2 * pause_s, LONGEST_PAUSE_S)
