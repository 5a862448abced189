"""Code of this machine on its way to the service."""

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
"""What small pieces of one request have together. A lower value makes more requests; a higher value loses more when one breaks."""
BUNDLE_PIECES: Final = 500
"""How many these are at most, as each has a header of its own in the bundle."""
PAUSES_S: Final = (0.5, 1, 2, 5, 10, 20)
"""Before a request is repeated that had no answer, or was one too many."""
AGAIN: Final = frozenset({429, 503})
TRIES: Final = 2
"""How often a folder is read that changes while it is sent."""
_DEFAULTS: Final = asdict(TreeEntry(path=""))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CodeClient:
    """Uploads to a service."""

    client: Client
    begins: Callable[[PackedFolder, int], None]
    """Called with a folder and how many bytes of it are to be sent."""
    sends: Callable[[int], None]
    """Called with the bytes that have been sent since the last call."""

    def upload(self, folder: Path) -> str:
        """The id of a folder, of which the service has everything now. What it has from before is not sent.

        Raises:
            BadRequest: something in the folder cannot be uploaded.
            Refused: the service does not take it.
            Unavailable: the service is away, or loses what it gets.
        """
        changed = ""
        for _ in range(TRIES):
            try:
                packed = pack(folder)
                tree = self._tree(packed)
                self.begins(packed, sum(packed.places[piece].size_bytes for piece in tree.missing))
                for bundle in _bundles(packed, tree.missing):
                    self._send(bundle)
            except ChangedFile as file:
                changed = str(file)
                continue
            if not tree.missing or not self._tree(packed).missing:
                return tree.id
        if changed:
            raise BadRequest(
                f"{changed!r} changes while it is uploaded; stop what writes it, or leave it out with .gitignore"
            )
        raise Unavailable("the service does not keep what it is sent; look at its log")

    def _tree(self, packed: PackedFolder) -> TreeOut:
        body = {"entries": [_sent(entry) for entry in packed.entries]}
        return _patiently(lambda: self.client.get(TreeOut, "POST", "/v1/code/trees", json=body))

    def _send(self, bundle: Sequence[tuple[str, bytes]]) -> None:
        if len(bundle) == 1:
            [(piece, content)] = bundle
            path = f"/v1/code/pieces/{piece}"
            _patiently(lambda: self.client.send("PUT", path, content=content))
        else:
            body = _tar(bundle)
            _patiently(lambda: self.client.get(PiecesOut, "POST", "/v1/code/pieces", content=body))
        self.sends(sum(len(content) for _, content in bundle))


def _sent(entry: TreeEntry) -> dict[str, Any]:
    """An entry as the service takes it, without what it takes for granted."""
    return {name: value for name, value in asdict(entry).items() if value != _DEFAULTS[name]}


def _bundles(packed: PackedFolder, pieces: Sequence[str]) -> Iterator[list[tuple[str, bytes]]]:
    """Pieces with their content, large ones by themselves and small ones together."""
    bundle: list[tuple[str, bytes]] = []
    room = BUNDLE_BYTES
    for piece in pieces:
        size = packed.places[piece].size_bytes
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


def _patiently(ask: Callable[[], T]) -> T:
    """The answer to a request that may be repeated: each one here changes nothing the second time."""
    for pause_s in PAUSES_S:
        try:
            return ask()
        except ServiceUnreachable:
            pass
        except Refused as refusal:
            if refusal.problem.status not in AGAIN:
                raise
        time.sleep(pause_s)
    return ask()
