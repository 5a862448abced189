"""Files for an API server on another machine: one zip for each launch, named by its content, sent in pieces.

The protocol is that of SkyPilot's own client (`/upload_v2`): a piece may be sent again, and a zip that is there
already is not sent at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.errors import LauncherUnreachable

PIECE_BYTES: Final = 50 * 1024 * 1024
"""What SkyPilot's own client sends at once. Bigger pieces are refused by common proxies."""
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


async def upload(door: Door, folders: Sequence[Path]) -> str:
    """Send folders; the id under which SkyPilot keeps them.

    Raises:
        LauncherUnreachable: they did not arrive.
        OSError: they cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-upload-") as scratch:
        archive = Path(scratch) / "files.zip"
        blob = await asyncio.to_thread(_zip, folders, archive)
        size = archive.stat().st_size
        user = {"user_hash": door.user}
        there = await door.get(
            "/upload_v2/blob", {**user, "blob_id": blob, "size_bytes": str(size)}
        )
        if there.get("exists"):
            return blob
        total = max(1, -(-size // PIECE_BYTES))
        status = ""
        with archive.open("rb") as stream:
            for index in range(total):
                params = {
                    **user,
                    "upload_id": blob,
                    "chunk_index": str(index),
                    "total_chunks": str(total),
                }
                piece = await asyncio.to_thread(stream.read, PIECE_BYTES)
                status = await door.send_chunk("/upload_v2", params, piece)
    if status != "completed":
        raise LauncherUnreachable(f"SkyPilot did not take the job's files ({status or 'no word'})")
    return blob


def _zip(folders: Sequence[Path], archive: Path) -> str:
    """Pack folders under their absolute paths; the digest of the zip."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for folder in sorted(folders):
            for place, subfolders, files in os.walk(folder):
                subfolders.sort()
                for name in sorted(files):
                    _add(target, Path(place) / name)
    with archive.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _add(target: zipfile.ZipFile, path: Path) -> None:
    info = zipfile.ZipInfo(str(path).lstrip("/"), _LONG_AGO)
    info.compress_type = zipfile.ZIP_DEFLATED
    if path.is_symlink():
        info.external_attr = 0o120777 << 16
        target.writestr(info, str(path.readlink()))
    elif path.is_file():
        info.external_attr = (path.stat().st_mode & 0xFFFF) << 16
        with target.open(info, "w") as into, path.open("rb") as source:
            while block := source.read(1 << 20):
                into.write(block)
