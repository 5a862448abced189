"""Reads recorded spot markets from files: traces and their prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import BadRequest

if TYPE_CHECKING:
    from holdfast.domain.planning.traces import Trace

SUFFIXES: Final = (".json", ".csv")
PRICES_FILE: Final = "prices.json"
"""The file of a folder that contains prices rather than a trace."""


def read_traces(paths: Sequence[Path], gang: int = 1) -> Iterator[Trace]:
    """Read the traces of files and folders. `gang`: nodes that are needed at once.

    Raises:
        BadRequest: A file cannot be read, or a folder has none.
    """
    from holdfast.domain.planning import traces  # noqa: PLC0415 - NumPy

    for path in paths:
        for file in trace_files(path):
            text = read_text(file)
            if file.suffix == ".csv":
                yield from traces.parse_csv(file.name, text, gang)
            else:
                yield traces.parse_json(file.stem, text, gang)


def read_text(path: Path) -> str:
    """Read a file of traces or prices.

    Raises:
        BadRequest: It cannot be read, is too large, or is no text.
    """
    from holdfast.domain.planning.traces import MAX_BYTES  # noqa: PLC0415 - NumPy

    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise BadRequest(f"{path} is larger than {MAX_BYTES // 2**20} MiB; split the recording")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path}: not a text file") from error


def trace_files(path: Path) -> Sequence[Path]:
    """The files of traces in a folder by name, or the file itself.

    Raises:
        BadRequest: The folder cannot be read, or has none.
    """
    if not path.is_dir():
        return [path]
    try:
        files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error
    files = [file for file in files if file.name != PRICES_FILE]
    if not files:
        raise BadRequest(f"{path}: no file there ends with .json or .csv")
    return files
