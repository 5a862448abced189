"""Uploaded files: unpacked and rejected as by SkyPilot."""

from __future__ import annotations

import io
import os
import posixpath
import stat
import zipfile
from typing import TypeAlias

Files: TypeAlias = dict[str, bytes | str | None]
"""By absolute path: the content of a file, the target of a link, None for a directory."""


def unpack(archive: bytes) -> Files:
    """Return the files of a zip archive, below SkyPilot's upload directory.

    Raises:
        ValueError: a link leads out of that directory.
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
