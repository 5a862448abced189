"""Upload of code from this machine to the service."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.api.schemas.code_uploads import PiecesOut, TreeOut
from holdfast.client import Client, Refused, ServiceUnreachable
from holdfast.code_upload.packing import ChangedFile, PackedFolder, pack
from holdfast.code_upload.tree import TreeEntry
from holdfast.errors import BadRequest, Unavailable

BUNDLE_BYTES: Final = 1024 * 1024
"""Bytes of small pieces bundled in one request.

A lower value makes more requests; a higher value loses more when one fails.
"""
BUNDLE_PIECES: Final = 500
"""Maximum number of pieces in a bundle, as each adds a header."""
BACKOFF_S: Final = (0.5, 1, 2, 5, 10, 20)
"""Seconds before a request is retried after no response or a rate limit."""
RETRY_STATUSES: Final = frozenset({429, 503})
TRIES: Final = 2
"""How often a directory is read if it changes during the upload."""
_DEFAULTS: Final = asdict(TreeEntry(path=""))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CodeClient:
    """Client for code uploads."""

    client: Client
    on_start: Callable[[PackedFolder, int], None]
    """Called with a directory and the number of bytes to upload."""
    on_progress: Callable[[int], None]
    """Called with the number of bytes sent since the last call."""

    def upload(self, folder: Path) -> str:
        """Upload a directory and return its id. Pieces that the service already has are not sent.

        Raises:
            BadRequest: something in the directory cannot be uploaded.
            Refused: the service does not accept it.
            Unavailable: the service is unreachable, or loses the data.
        """
        changed = ""
        for _ in range(TRIES):
            try:
                packed = pack(folder)
                tree = self._tree(packed)
                self.on_start(
                    packed, sum(packed.locations[piece].size_bytes for piece in tree.missing)
                )
                for bundle in _bundles(packed, tree.missing):
                    self._send(bundle)
            except ChangedFile as file:
                changed = str(file)
                continue
            if not tree.missing or not self._tree(packed).missing:
                return tree.id
        if changed:
            raise BadRequest(
                f"{changed!r} changes during the upload; stop the program that writes it, or exclude it with .gitignore"
            )
        raise Unavailable("the service did not store the uploaded data; see its log")

    def _tree(self, packed: PackedFolder) -> TreeOut:
        body = {"entries": [_entry_body(entry) for entry in packed.entries]}
        return _retry(lambda: self.client.get(TreeOut, "POST", "/v1/code/trees", json=body))

    def _send(self, bundle: Sequence[tuple[str, bytes]]) -> None:
        if len(bundle) == 1:
            [(piece, content)] = bundle
            path = f"/v1/code/pieces/{piece}"
            _retry(lambda: self.client.send("PUT", path, content=content))
        else:
            body = _tar(bundle)
            _retry(lambda: self.client.get(PiecesOut, "POST", "/v1/code/pieces", content=body))
        self.on_progress(sum(len(content) for _, content in bundle))


def _entry_body(entry: TreeEntry) -> dict[str, Any]:
    """Convert an entry for the request body, without default values."""
    return {name: value for name, value in asdict(entry).items() if value != _DEFAULTS[name]}


def _bundles(packed: PackedFolder, pieces: Sequence[str]) -> Iterator[list[tuple[str, bytes]]]:
    """Group pieces with their content: large ones alone, small ones together."""
    bundle: list[tuple[str, bytes]] = []
    room = BUNDLE_BYTES
    for piece in pieces:
        size = packed.locations[piece].size_bytes
        if bundle and (size > room or len(bundle) == BUNDLE_PIECES):
            yield bundle
            bundle, room = [], BUNDLE_BYTES
        bundle.append((piece, packed.read(piece)))
        room -= size
    if bundle:
        yield bundle


def _tar(bundle: Sequence[tuple[str, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for piece, content in bundle:
            info = tarfile.TarInfo(piece)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _retry(ask: Callable[[], T]) -> T:
    """Retry a request until it has a response; every request here is idempotent."""
    for pause_s in BACKOFF_S:
        try:
            return ask()
        except ServiceUnreachable:
            pass
        except Refused as refusal:
            if refusal.problem.status not in RETRY_STATUSES:
                raise
        time.sleep(pause_s)
    return ask()
