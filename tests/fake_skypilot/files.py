"""What the stand-in makes of uploaded files: it unpacks them as SkyPilot does, and refuses what SkyPilot refuses."""

from __future__ import annotations

import io
import os
import posixpath
import stat
import zipfile
from typing import TypeAlias

Files: TypeAlias = dict[str, bytes | str | None]
"""By their absolute path: what is in a file, where a link leads, None for a folder."""


def unpack(archive: bytes) -> Files:
    """The files of a zip, below SkyPilot's folder for them.

    Raises:
        ValueError: a link leads out of that folder.
    """
    found: Files = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        for member in source.infolist():
            path = "/" + member.filename.rstrip("/")
            if stat.S_ISLNK(member.external_attr >> 16):
                found[path] = _link(path, source.read(member).decode())
            else:
                found[path] = None if member.is_dir() else source.read(member)
    return found


def _link(path: str, target: str) -> str:
    if posixpath.isabs(target):
        raise ValueError(f"{path} is an absolute link")
    depth = len(posixpath.dirname(path).strip("/").split("/"))
    if os.path.normpath(target).split("/").count("..") > depth:
        raise ValueError(f"{path} leads to what is not in userspace")
    return target
