"""Uploads a launch's files to a remote API server, as one zip named by its content.

The protocol is that of SkyPilot's own client (`/upload_v2`): chunks can be sent again, and an existing zip is not sent.
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

CHUNK_BYTES: Final = 50 * 1024 * 1024
"""Chunk size of SkyPilot's own client. Common proxies refuse larger chunks."""
BLOCK_BYTES: Final = 1024 * 1024
"""Bytes of a file held in memory at once."""

_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


async def upload(
    door: SkyPilotClient,
    sources: Sequence[Path],
    folders: Folders = Folders(),
    own: Collection[Path] = (),
) -> str:
    """Upload files and directories; return the id under which SkyPilot stores them.

    Files outside `own`, the service's directories, are checked against `folders` after they are opened.

    Raises:
        LaunchRefused: a file is missing, or the job may not use it.
        LauncherUnreachable: the files could not be read or uploaded.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-upload-") as scratch:
            archive = Path(scratch) / "files.zip"
            blob = await asyncio.to_thread(_zip, sources, archive, folders, own)
            with archive.open("rb") as stream:
                await _send(door, blob, stream)
    except OSError as error:
        raise LauncherUnreachable(f"cannot pack the job's files: {error}") from error
    return blob


async def _send(door: SkyPilotClient, blob: str, stream: BinaryIO) -> None:
    size = os.fstat(stream.fileno()).st_size
    user = {"user_hash": door.user}
    there = await door.get("/upload_v2/blob", {**user, "blob_id": blob, "size_bytes": str(size)})
    if there.get("exists"):
        return
    total = max(1, -(-size // CHUNK_BYTES))
    status = ""
    for index in range(total):
        place = {"upload_id": blob, "chunk_index": str(index), "total_chunks": str(total)}
        piece = await asyncio.to_thread(stream.read, CHUNK_BYTES)
        status = await door.send_chunk("/upload_v2", {**user, **place}, piece)
    if status != "completed":
        raise LauncherUnreachable(
            f"SkyPilot did not accept the job's files (status: {status or 'none'})"
        )


def _zip(sources: Sequence[Path], archive: Path, folders: Folders, own: Collection[Path]) -> str:
    """Pack files and directories under their absolute paths; return the digest of the zip."""
    parts = {part for source in sources for part in _parts(source)}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(parts):
            checked = None if any(path.is_relative_to(one) for one in own) else folders
            _add(target, path, checked, is_link=path.is_symlink() and path not in sources)
    with archive.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _parts(source: Path) -> Iterator[Path]:
    """Yield a file, or a directory and its contents.

    `source` may be a link; links inside are not followed.
    """
    if not source.exists():
        raise LaunchRefused(f"{source} is neither a file nor a directory on the service's machine")
    yield source
    if source.is_dir():
        for place, folders, files in os.walk(source, onerror=_raise):
            yield from (Path(place) / name for name in [*folders, *files])


def _add(target: zipfile.ZipFile, path: Path, folders: Folders | None, *, is_link: bool) -> None:
    """Pack one path; anything but files, directories and links, such as sockets, is skipped."""
    name = str(path).lstrip("/")
    if is_link:
        info = zipfile.ZipInfo(name, _ZIP_EPOCH)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        # SkyPilot unpacks below its own directory and rejects links that lead out of it.
        target.writestr(info, os.path.relpath(path.parent / path.readlink(), path.parent))
    elif path.is_dir():
        target.writestr(zipfile.ZipInfo(f"{name}/", _ZIP_EPOCH), b"")
    elif path.is_file():
        info = zipfile.ZipInfo(name, _ZIP_EPOCH)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = path.stat().st_mode << 16
        # The final size of a file is unknown before it is read.
        with path.open("rb") as source, target.open(info, "w", force_zip64=True) as into:
            # Checked by the open file's real path, because a parent directory may have become a link.
            real = Path(f"/proc/self/fd/{source.fileno()}").readlink()
            if folders and (why := folders.refusal(real)):
                raise LaunchRefused(f"{path} {why}")
            shutil.copyfileobj(source, into, BLOCK_BYTES)


def _raise(error: OSError) -> None:
    """Raise the error: os.walk would silently skip an unreadable directory."""
    raise error
