"""Stores the newest row of the audit log in a file outside the database.

The file reveals that the end of the log was cut off, or that the log was rewritten with matching hashes.
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
from holdfast.store.audit_log import AuditLog

log = logging.getLogger(__name__)

ANCHOR_EVERY_S: Final = 5.0
"""Seconds between two copies of the chain head. A lower value adds queries; a higher value
leaves more recent rows unprotected against truncation."""


@dataclass
class AuditAnchor:
    """Keeps the anchor file up to date.

    The file only moves forward, and stays unchanged if the log in the database no longer matches it.
    """

    file: Path
    audit: AuditLog
    _is_mismatch_logged: bool = field(default=False)

    async def run(self) -> None:
        """Update the anchor until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.update)
            except StoreUnavailable as error:
                log.debug("the audit log anchor is not updated for now: %s", error)
            except OSError as error:
                log.warning("the audit log anchor cannot be written: %s", error)
            await asyncio.sleep(ANCHOR_EVERY_S)

    def update(self) -> None:
        """Store the newest row, provided that the stored one is still in the log."""
        kept, head = self.read(), self.audit.head()
        if head == kept:
            return
        if kept.seq and not self.audit.contains(kept):
            if not self._is_mismatch_logged:
                log.error("the audit log does not match its anchor; run: holdfast audit verify")
            self._is_mismatch_logged = True
            return
        draft = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        draft.write_text(f"{head}\n")
        draft.replace(self.file)

    def read(self) -> ChainHead:
        """The stored row; the beginning of the log if the file is missing or invalid."""
        try:
            seq, _, digest = self.file.read_text().strip().partition(":")
            return ChainHead(seq=int(seq), hash=digest)
        except (OSError, ValueError):
            return ChainHead()
