"""The newest row of the audit log, kept in a file outside of the database: what tells that a tail was cut off, or that
the log was made anew with hashes that fit.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.domain.access.audit import ChainHead
from holdfast.errors import StoreUnavailable
from holdfast.store.audit_log import Audit

log = logging.getLogger(__name__)

KEEP_EVERY_S: Final = 5.0
"""How often it is looked for a newer row. Smaller: more queries. Bigger: more rows can be cut off before they are kept."""


@dataclass
class AuditAnchor:
    """Who keeps it. The file only ever goes forward, and stays as it is once the database tells another story."""

    file: Path
    audit: Audit
    _complained: bool = field(default=False)

    async def keep_on(self) -> None:
        """Keep it until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.keep)
            except StoreUnavailable as error:
                log.debug("the head of the audit log is not kept for now: %s", error)
            except OSError as error:
                log.warning("the head of the audit log cannot be kept: %s", error)
            await asyncio.sleep(KEEP_EVERY_S)

    def keep(self) -> None:
        """Write down the newest row, if the one that was written down before is still there."""
        kept, head = self.kept(), self.audit.head()
        if head == kept:
            return
        if kept.seq and not self.audit.holds(kept):
            if not self._complained:
                log.error("the audit log is not the one that was kept; see: holdfast audit verify")
            self._complained = True
            return
        draft = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        draft.write_text(f"{head}\n")
        draft.replace(self.file)

    def kept(self) -> ChainHead:
        """The row that was written down; the beginning where none was, or where the file is no such thing."""
        try:
            seq, _, digest = self.file.read_text().strip().partition(":")
            return ChainHead(seq=int(seq), hash=digest)
        except (OSError, ValueError):
            return ChainHead()
