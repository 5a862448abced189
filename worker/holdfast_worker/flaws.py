"""Flaws: checkpoints of which bytes proved damaged, so that no later start begins to read them.

    flawed/step-150-e2-9f31c2d40001.json      what is wrong with it, and when that was found

What is read goes straight to its place. A start that finds no other checkpoint after one proved damaged midway has lost the
state that it began with, too; it leaves, and the next one knows by this not to try the same again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from holdfast_worker.moment import now, stamp
from holdfast_worker.names import FLAWED, Name, flawed_by, flawed_key
from holdfast_worker.patience import patiently
from holdfast_worker.stores import Missing, Store


@dataclass(frozen=True, slots=True)
class Flaws:
    """What is known against the checkpoints of one job."""

    store: Store

    def known(self, until_s: float) -> dict[Name, str]:
        """Why each of them cannot be used."""
        keys = patiently(lambda: self.store.list(FLAWED), until_s)
        names = {key: flawed_by(key) for key in keys}
        return {name: self._why(key, until_s) for key, name in names.items() if name}

    def mark(self, name: Name, why: str, until_s: float) -> None:
        """Let all later starts know."""
        said = {"reason": why, "found_at": stamp(now())}
        patiently(lambda: self.store.put(flawed_key(name), json.dumps(said).encode()), until_s)

    def clear(self, name: Name, until_s: float) -> None:
        """Forget what is known against one: it is gone, or sound again."""
        patiently(lambda: self.store.delete(flawed_key(name)), until_s)

    def _why(self, key: str, until_s: float) -> str:
        try:
            return str(json.loads(patiently(lambda: self.store.get(key), until_s))["reason"])
        except (Missing, ValueError, KeyError, TypeError):
            return "an earlier start found it damaged"
