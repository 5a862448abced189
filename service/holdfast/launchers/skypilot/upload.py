"""Files for an API server on another machine: one zip for each launch, named by its content, sent in pieces.

The protocol is that of SkyPilot's own client (`/upload_v2`): a piece may be sent again, and a zip that is there
already is not sent at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.skypilot.api_client import SkyPilotClient

PIECE_BYTES: Final = 50 * 1024 * 1024
"""What SkyPilot's own client sends at once. Bigger pieces are refused by common proxies."""
BLOCK_BYTES: Final = 1024 * 1024
"""Of a file that are in memory at once."""

_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


async def upload(
    door: SkyPilotClient,
    sources: Sequence[Path],
    folders: Folders = Folders(),
    own: Collection[Path] = (),
) -> str:
    """Send files and folders; the id under which SkyPilot keeps them.

    Each file that is not below one of `own`, the service's own folders, is checked against `folders` once it is open.

    Raises:
        LaunchRefused: one of them is not there, or the job may not use it.
        LauncherUnreachable: they could not be read, or did not arrive.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-upload-") as scratch:
            archive = Path(scratch) / "files.zip"
            blob = await asyncio.to_thread(_zip, sources, archive, folders, own)
            with archive.open("rb") as stream:
                await _send(door, blob, stream)
    except OSError as error:
        raise LauncherUnreachable(f"the job's files cannot be packed: {error}") from error
    return blob


async def _send(door: SkyPilotClient, blob: str, stream: BinaryIO) -> None:
    size = os.fstat(stream.fileno()).st_size
    user = {"user_hash": door.user}
    there = await door.get("/upload_v2/blob", {**user, "blob_id": blob, "size_bytes": str(size)})
    if there.get("exists"):
        return
    total = max(1, -(-size // PIECE_BYTES))
    status = ""
    for index in range(total):
        place = {"upload_id": blob, "chunk_index": str(index), "total_chunks": str(total)}
        piece = await asyncio.to_thread(stream.read, PIECE_BYTES)
        status = await door.send_chunk("/upload_v2", {**user, **place}, piece)
    if status != "completed":
        raise LauncherUnreachable(f"SkyPilot did not take the job's files ({status or 'no word'})")


def _zip(sources: Sequence[Path], archive: Path, folders: Folders, own: Collection[Path]) -> str:
    """Pack files and folders under their absolute paths; the digest of the zip."""
    parts = {part for source in sources for part in _parts(source)}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(parts):
            checked = None if any(path.is_relative_to(one) for one in own) else folders
            _add(target, path, checked, is_link=path.is_symlink() and path not in sources)
    with archive.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _parts(source: Path) -> Iterator[Path]:
    """A file, or a folder and everything in it. Links in it are not followed; itself it may be one."""
    if not source.exists():
        raise LaunchRefused(f"{source} is neither a file nor a folder of the service's machine")
    yield source
    if source.is_dir():
        for place, folders, files in os.walk(source, onerror=_raise):
            yield from (Path(place) / name for name in [*folders, *files])


def _add(target: zipfile.ZipFile, path: Path, folders: Folders | None, *, is_link: bool) -> None:
    """Pack one thing; what is neither file nor folder nor link, as a socket, is left out."""
    name = str(path).lstrip("/")
    if is_link:
        info = zipfile.ZipInfo(name, _LONG_AGO)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        # SkyPilot unpacks below a folder of its own, and takes no link that leads out of it.
        target.writestr(info, os.path.relpath(path.parent / path.readlink(), path.parent))
    elif path.is_dir():
        target.writestr(zipfile.ZipInfo(f"{name}/", _LONG_AGO), b"")
    elif path.is_file():
        info = zipfile.ZipInfo(name, _LONG_AGO)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = path.stat().st_mode << 16
        # Before it is read nobody knows how big it will have become.
        with path.open("rb") as source, target.open(info, "w", force_zip64=True) as into:
            # By where it is now that it is open: a folder on the way may have become a link.
            real = Path(f"/proc/self/fd/{source.fileno()}").readlink()
            if folders and (why := folders.refusal(real)):
                raise LaunchRefused(f"{path} {why}")
            shutil.copyfileobj(source, into, BLOCK_BYTES)


def _raise(error: OSError) -> None:
    """os.walk would rather skip a folder it cannot read than say so."""
    raise error
