"""Output files of a job in its checkpoint store. Standard library only.

    outputs/data/e3-9f31c2d4/000000/000000       a part of the first file that node 0 left in the attempt of epoch 3
    outputs/commits/000000000003.json            which files these are, written last: they exist from then on
    outputs/data/n1-e3-0b7e99a1/000000/000000    a part of the first file of node 1
    outputs/commits/000000000003-n1.json         the files of node 1
    outputs/nodes/000000000003/                  which nodes have begun and ended to collect, and which sends a file that several have

The workers write them at the end of an attempt, and the service lists and reads them. A higher epoch has replaced a lower one. The keys of
node 0 are those of versions that collect from this node alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

OUTPUTS: Final = "outputs/"
"""Prefix of all keys of output files."""
OUTPUT_COMMITS: Final = f"{OUTPUTS}commits/"
OUTPUT_DATA: Final = f"{OUTPUTS}data/"
OUTPUT_NODES: Final = f"{OUTPUTS}nodes/"

MAX_PATTERNS: Final = 50
"""Patterns of output files in a job file. A lower value refuses jobs with many kinds of files; a higher value searches longer."""
MAX_PATTERN_CHARS: Final = 200
MAX_OUTPUT_FILES: Final = 1000
"""Output files of a node. A lower value leaves out more; a higher value pays for nodes that send small files."""
MAX_OUTPUT_BYTES: Final = 10 << 30
"""Bytes of a node's output files. A lower value leaves out more; a higher value pays for nodes that send, and for storage."""
MAX_OTHERS_FILES: Final = 9000
"""Output files of all nodes but the first, which share them equally. A lower value leaves out more of large jobs; a higher value makes long lists."""
MAX_OTHERS_BYTES: Final = 90 << 30
"""Bytes of the output files of all nodes but the first. A lower value leaves out more of large jobs; a higher value pays for storage."""
NUMBERS_PER_NODE: Final = 1_000_000
"""Numbers in requests that belong to one node. A file's number in keys has six digits."""
OUTPUT_PART_BYTES: Final = 16 << 20
"""Bytes of one object. A lower value adds requests; a higher value needs more memory to send and to read it."""
MAX_LEFT_OUT: Final = 100
"""Files that were left out and are listed by name; more are counted."""
MAX_COMMIT_BYTES: Final = 4 << 20
"""Bytes of a commit that a reader accepts. A lower value refuses long names; a higher value lets a damaged object fill the memory."""
MAX_PATH_BYTES: Final = 1024
"""Bytes of a file's path. A lower value leaves out deep folders; a higher value exceeds what clients can create."""

_NONCE: Final = re.compile(r"[0-9a-f]{8}")
_COMMIT_KEY: Final = re.compile(rf"{OUTPUT_COMMITS}(\d{{12,18}})(?:-n([1-9]\d{{0,5}}))?\.json")
_DATA_KEY: Final = re.compile(rf"{OUTPUT_DATA}(?:n(\d+)-)?e(\d+)-")
_NODES_KEY: Final = re.compile(rf"{OUTPUT_NODES}(\d{{12,18}})/")


def check_output_pattern(pattern: str) -> None:
    """Check a pattern of output files.

    Raises:
        ValueError: it could match files outside of the working directory, or none.
    """
    parts = pattern.split("/")
    if not pattern.strip("/ ") or len(pattern) > MAX_PATTERN_CHARS:
        msg = f"is empty, or longer than {MAX_PATTERN_CHARS} characters; write a path such as results/*.json"
    elif pattern.startswith(("/", "~")) or ".." in parts:
        msg = f"{pattern!r} leaves the working directory; write a path below it, without a leading / or .."
    elif "**" in pattern and any("**" in part and part != "**" for part in parts):
        msg = (
            f"{pattern!r} has ** within a name; write it as a whole part, such as results/**/*.json"
        )
    elif not pattern.isprintable():
        msg = f"{pattern!r} has a control character; remove it"
    else:
        return
    raise ValueError(msg)


def is_safe_path(path: str) -> bool:
    """Whether a path names a file below a directory on every machine that receives it."""
    parts = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and 0 < len(path.encode(errors="replace")) <= MAX_PATH_BYTES
        and not {"", ".", ".."} & set(parts)
    )


def node_path(node: int, path: str, suffix: str = "") -> str:
    """The path of a node's file among those of all nodes: below node-N, except for node 0."""
    return f"node-{node}{suffix}/{path}" if node else path


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One output file."""

    number: int
    """Its number in keys."""
    path: str
    """Its path below the working directory, with slashes."""
    size_bytes: int
    sha256: str

    @property
    def parts(self) -> range:
        """Numbers of its parts; an empty file has none."""
        return range(-(-self.size_bytes // OUTPUT_PART_BYTES))


@dataclass(frozen=True, slots=True)
class LeftOutFile:
    """A matching file that was not collected."""

    path: str
    reason: str
    """Why, as a sentence without its subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCollection:
    """The output files that one node has left in one attempt."""

    epoch: int
    """Fencing token of the attempt."""
    node: int = 0
    nonce: str
    """Random for each collection, so that each key is used once."""
    attempt: int | None
    """Number of the attempt; None if the launcher does not number them."""
    exit_code: int
    collected_at: datetime
    files: Sequence[OutputFile]
    left_out: Sequence[LeftOutFile]
    """At most MAX_LEFT_OUT of them."""
    left_out_count: int

    @property
    def commit_key(self) -> str:
        """Key of the object that lists the files."""
        of_node = f"-n{self.node}" if self.node else ""
        return f"{OUTPUT_COMMITS}{self.epoch:012d}{of_node}.json"

    @property
    def data_prefix(self) -> str:
        """Prefix of the keys of all files."""
        return data_prefix(self.epoch, self.nonce, self.node)

    def file_prefix(self, file: OutputFile) -> str:
        """Prefix of the keys of a file's parts."""
        return f"{self.data_prefix}{file.number:06d}/"

    def part_key(self, file: OutputFile, part: int) -> str:
        """Key of a part of a file."""
        return f"{self.file_prefix(file)}{part:06d}"

    def dump(self) -> bytes:
        """The content of the commit."""
        raw = {**asdict(self), "collected_at": self.collected_at.isoformat()}
        return json.dumps(raw).encode()

    @classmethod
    def parse(cls, data: bytes, epoch: int, node: int = 0) -> Self:
        """Parse the commit of a node and an epoch, which a job's own program may have written.

        Raises:
            ValueError: it is not such an object.
        """
        try:
            raw = json.loads(data)
            found = cls(
                epoch=epoch,
                node=node,
                nonce=str(raw["nonce"]),
                attempt=None if raw["attempt"] is None else int(raw["attempt"]),
                exit_code=int(raw["exit_code"]),
                collected_at=datetime.fromisoformat(raw["collected_at"]),
                files=tuple(map(_output_file, raw["files"])),
                left_out=tuple(_left_out(raw["left_out"])),
                left_out_count=int(raw["left_out_count"]),
            )
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"the list of output files is damaged: {error!r}") from error
        if not _NONCE.fullmatch(found.nonce) or found.collected_at.tzinfo is None:
            raise ValueError("the list of output files is damaged")
        if len(found.files) > MAX_OUTPUT_FILES:
            raise ValueError(f"lists more than {MAX_OUTPUT_FILES} files")
        return found


class CommitName(NamedTuple):
    """Which files an object lists."""

    epoch: int
    node: int


def data_prefix(epoch: int, nonce: str, node: int) -> str:
    """Prefix of the keys of one collection's files."""
    of_node = f"n{node}-" if node else ""
    return f"{OUTPUT_DATA}{of_node}e{epoch}-{nonce}/"


def nodes_prefix(epoch: int) -> str:
    """Prefix of the keys by which nodes agree on what each sends."""
    return f"{OUTPUT_NODES}{epoch:012d}/"


def is_replaced(key: str, by: OutputCollection) -> bool:
    """Whether a collection replaces an object.

    Those of earlier attempts exist until node 0 has sent its own files: the others may come first, or alone.
    """
    is_first = by.node == 0
    if commit := parse_commit_key(key):
        return is_first and commit.epoch < by.epoch
    if nodes := _NODES_KEY.match(key):
        return is_first and int(nodes[1]) < by.epoch
    if not (data := _DATA_KEY.match(key)) or key.startswith(by.data_prefix):
        return False
    is_same = (int(data[2]), int(data[1] or 0)) == (by.epoch, by.node)
    return is_same or (is_first and int(data[2]) < by.epoch)


def parse_commit_key(key: str) -> CommitName | None:
    """The epoch and the node whose files an object lists; None for keys of a different form."""
    match = _COMMIT_KEY.fullmatch(key)
    return CommitName(int(match[1]), int(match[2] or 0)) if match else None


def _output_file(raw: Mapping[str, Any]) -> OutputFile:
    found = OutputFile(
        int(raw["number"]), str(raw["path"]), int(raw["size_bytes"]), str(raw["sha256"])
    )
    if not is_safe_path(found.path):
        msg = f"lists {found.path!r}, which is not a path below a directory"
        raise ValueError(msg)
    is_possible = 0 <= found.number < MAX_OUTPUT_FILES and 0 <= found.size_bytes <= MAX_OUTPUT_BYTES
    if not is_possible or not re.fullmatch(r"[0-9a-f]{64}", found.sha256):
        msg = f"lists {found.path} with an impossible number, size or digest"
        raise ValueError(msg)
    return found


def _left_out(raw: Sequence[Mapping[str, Any]]) -> Iterator[LeftOutFile]:
    for item in raw[:MAX_LEFT_OUT]:
        yield LeftOutFile(str(item["path"]), str(item["reason"]))
