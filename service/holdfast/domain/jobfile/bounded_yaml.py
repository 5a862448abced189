"""YAML from outside, read within bounds: the cost of a document is known before any of it is built.

An alias stands for everything that its anchor names, and a merge key copies it, so that a few hundred bytes can stand for
gigabytes. One pass over the parser's events counts every value as often as it would be written out without aliases, and stops
at the first bound that is passed. Parsing is libyaml's, which needs about a microsecond for each event, but whose time grows
with the square of the depth and whose composer overflows the stack: nothing reaches it that is deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

MAX_BYTES: Final = 256 * 1024
"""Longest document. A lower value refuses real scripts in `run`; a higher value lets one request fill the journal."""
MAX_DEPTH: Final = 64
"""Deepest nesting. A lower value refuses no task that was ever seen; a higher value costs time and stack."""
MAX_VALUES: Final = 2000
"""Keys and values after aliases are written out. A lower value refuses tasks with many variables; a higher value costs
0.05 ms of a core for each value that is read, checked and rendered."""
MAX_TEXT: Final = 4 * MAX_BYTES
"""Characters of all texts after aliases are written out. A higher value lets a few aliases of one long text fill the memory."""
MAX_KEY: Final = 1024
"""Longest key. A higher value makes the places that messages name long: a place holds every key above it."""
MAX_NUMBER: Final = 400
"""Longest number. A higher value costs time that grows with the square of the length."""

_MOST_TAG_LINES: Final = 100
_TOO_MUCH: Final = (
    "holds more than {} {}, aliases written out; write less, or move data into workdir"
)
_TOO_DEEP: Final = "is nested too deeply, or repeats too much through aliases; write it plainly"


class NotReadable(ValueError):
    """The text is no YAML, or more of it than is read; the message says which."""


class _Loader(yaml.CSafeLoader):
    """The safe loader without numbers of any length."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is read."""

    size_bytes: int = MAX_BYTES
    values: int = MAX_VALUES


JOB_FILE: Final = Bounds()


def compose(text: str, bounds: Bounds = JOB_FILE) -> list[yaml.Node]:
    """The documents of a text as nodes, which know how they are written.

    Raises:
        NotReadable: it is not YAML, or passes a bound.
    """
    if len(text.encode(errors="surrogatepass")) > bounds.size_bytes:
        raise NotReadable(f"is larger than {bounds.size_bytes // 1024} KiB; move data into workdir")
    if text.count("%TAG") > _MOST_TAG_LINES:  # libyaml compares each with all before it.
        raise NotReadable(_TOO_MUCH.format(_MOST_TAG_LINES, "%TAG directives"))
    try:
        size = _Size(bounds.values)
        for event in yaml.parse(text, Loader=_Loader):
            size.add(event)
        return list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        raise NotReadable(f"is not YAML: {_place(error, text)}{error.problem}") from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise NotReadable(f"is not YAML: {error}") from error


def construct(node: yaml.Node, text: str) -> Any:
    """The values of one document of `text`. Its nodes have their merge keys written out after this.

    Raises:
        NotReadable: a value does not fit its tag.
    """
    try:
        return _Loader("").construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise NotReadable(f"is not YAML: {_place(error, text)}{error.problem}") from error
    except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
        # PyYAML raises what its conversions happen to raise, such as AttributeError for `!!timestamp x`.
        raise NotReadable(f"is not YAML: a value does not fit its type ({error})") from error


def load(text: str, bounds: Bounds = JOB_FILE) -> Any:
    """The values of a text that holds one document; None where it holds none.

    Raises:
        NotReadable: it is not YAML, passes a bound, or holds several documents.
    """
    nodes = compose(text, bounds)
    if len(nodes) > 1:
        raise NotReadable(f"holds {len(nodes)} documents; write one")
    return construct(nodes[0], text) if nodes else None


@dataclass(slots=True)
class _Open:
    """A collection that is not closed."""

    anchor: str | None
    is_mapping: bool
    values_before: int
    text_before: int
    height: int = 1
    children: int = 0


class _Size:
    """What has been read so far, aliases written out."""

    def __init__(self, most_values: int) -> None:
        self._most_values = most_values
        self._values = self._text = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[int, int, int] | None] = {}
        """Values, text and height of what an anchor names; None while it is not closed."""

    def add(self, event: yaml.Event) -> None:
        """Count one event.

        Raises:
            NotReadable: a bound is passed.
        """
        match event:
            case yaml.ScalarEvent():
                self._count(1, len(event.value), 1)
                if event.anchor:
                    self._anchors[event.anchor] = (1, len(event.value), 1)
            case yaml.CollectionStartEvent():
                before = self._values, self._text
                self._count(1, 0, 1)
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                self._open.append(_Open(event.anchor, is_mapping, *before))
                if event.anchor:
                    self._anchors[event.anchor] = None
            case yaml.CollectionEndEvent():
                self._close()
            case yaml.AliasEvent():
                # One that names nothing is an error of the composer, which knows its place.
                named = self._anchors.get(event.anchor or "", (1, 0, 1))
                if named is None:
                    raise NotReadable(_TOO_DEEP)
                self._count(*named)
            case yaml.DocumentStartEvent():
                self._anchors.clear()

    def _close(self) -> None:
        closed = self._open.pop()
        if closed.anchor:
            values, text = self._values - closed.values_before, self._text - closed.text_before
            self._anchors[closed.anchor] = (values, text, closed.height)
        if self._open:
            self._open[-1].height = max(self._open[-1].height, closed.height + 1)

    def _count(self, values: int, text: int, height: int) -> None:
        self._values += values
        self._text += text
        if len(self._open) + height > MAX_DEPTH:
            raise NotReadable(_TOO_DEEP)
        if self._values > self._most_values:
            raise NotReadable(_TOO_MUCH.format(self._most_values, "keys and values"))
        if self._text > MAX_TEXT:
            raise NotReadable(_TOO_MUCH.format(MAX_TEXT, "characters"))
        if not self._open:
            return
        inside = self._open[-1]
        if inside.is_mapping and inside.children % 2 == 0 and text > MAX_KEY:
            raise NotReadable(f"has a key of {text} characters; write at most {MAX_KEY}")
        inside.children += 1
        inside.height = max(inside.height, height + 1)


def _place(error: yaml.MarkedYAMLError, text: str) -> str:
    """Where an error is. libyaml puts the end of a text on a line of its own."""
    if (mark := error.problem_mark) is None:
        return ""
    before = text[: mark.index]
    line = before.count("\n") + 1
    return f"line {line}, column {len(before) - before.rfind(chr(10))}: "


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    if len(str(node.value)) > MAX_NUMBER:
        raise ValueError(f"a number of {len(node.value)} characters; write at most {MAX_NUMBER}")
    kind = "int" if node.tag.endswith(":int") else "float"
    return getattr(loader, f"construct_yaml_{kind}")(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)
