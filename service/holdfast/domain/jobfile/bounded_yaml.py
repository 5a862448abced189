"""Bounded YAML loading: an untrusted document's size is checked before construction.

An alias repeats its anchor's content and a merge key copies it, so a few hundred bytes can expand to gigabytes. One pass over
the parser events counts every value as often as it appears with expanded aliases, and stops at the first exceeded bound.
libyaml needs about a microsecond per event, but its time grows with the square of the depth, and its composer overflows the
stack. Therefore documents deeper than `MAX_DEPTH` are rejected first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

MAX_BYTES: Final = 256 * 1024
"""Maximum document size. A lower value refuses real scripts in `run`; a higher value lets one request fill the journal."""
MAX_DEPTH: Final = 64
"""Maximum nesting. A lower value would still accept all known tasks; a higher value costs time and stack."""
MAX_VALUES: Final = 2000
"""Maximum keys and values with expanded aliases.

A lower value refuses tasks with many variables. A higher value costs 0.05 ms of a core per value to read, check and render.
"""
MAX_TEXT: Final = 4 * MAX_BYTES
"""Maximum characters with expanded aliases. A higher value lets a few aliases of one long text fill the memory."""
MAX_KEY: Final = 1024
"""Maximum key length. A higher value lengthens the places in messages, which contain all parent keys."""
MAX_NUMBER: Final = 400
"""Maximum digits of a number. A higher value costs time that grows with the square of the length."""

_MAX_TAG_LINES: Final = 100
_MERGE: Final = "tag:yaml.org,2002:merge"
_TOO_MUCH: Final = (
    "contains more than {} {} with expanded aliases; shorten it, or move data into workdir"
)
_TOO_DEEP: Final = "is nested too deeply, or repeats too much through aliases; simplify it"


class NotReadable(ValueError):
    """The text is not valid YAML or exceeds a bound, as the message explains."""

    def __init__(self, message: str, lines: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.lines = lines
        """Numbers of the affected lines, from 1; empty if unknown."""


class _Loader(yaml.CSafeLoader):
    """The safe YAML loader with a bound on the length of numbers."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Maximum size of a document."""

    size_bytes: int = MAX_BYTES
    values: int = MAX_VALUES


JOB_FILE: Final = Bounds()


def compose(text: str, bounds: Bounds = JOB_FILE) -> list[yaml.Node]:
    """Parse a text into the nodes of its documents, which preserve the original notation.

    Raises:
        NotReadable: The text is not YAML or exceeds a bound.
    """
    if len(text.encode(errors="surrogatepass")) > bounds.size_bytes:
        raise NotReadable(f"is larger than {bounds.size_bytes // 1024} KiB; move data into workdir")
    if text.count("%TAG") > _MAX_TAG_LINES:  # libyaml compares each directive with all before it.
        raise NotReadable(_TOO_MUCH.format(_MAX_TAG_LINES, "%TAG directives"))
    try:
        size = _Size(bounds.values)
        for event in yaml.parse(text, Loader=_Loader):
            size.add(event)
        return list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text) from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise NotReadable(f"is not YAML: {error}") from error


def construct(node: yaml.Node, text: str) -> Any:
    """Construct the values of a document of `text`.

    Merge keys in its nodes are expanded afterwards.

    Raises:
        NotReadable: A value does not fit its tag.
    """
    try:
        return _Loader("").construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text) from error
    except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
        # PyYAML raises arbitrary exceptions of its conversions, such as AttributeError for `!!timestamp x`.
        raise NotReadable(f"is not YAML: a value does not fit its type ({error})") from error


def load(text: str, bounds: Bounds = JOB_FILE) -> Any:
    """Load a text with at most one document; None without one.

    Raises:
        NotReadable: The text is not YAML, exceeds a bound, or contains several documents.
    """
    nodes = compose(text, bounds)
    if len(nodes) > 1:
        raise NotReadable(f"contains {len(nodes)} documents; write one")
    return construct(nodes[0], text) if nodes else None


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that a mapping has twice, of which YAML loaders silently use the last."""

    pointer: str
    lines: tuple[int, int]
    """Numbers of the lines of the first and of the repeated key, from 1."""


def repeated_keys(document: yaml.Node) -> Iterator[RepeatedKey]:
    """Yield the keys that a mapping of a document has more than once.

    Merge keys (`<<`) may be repeated.
    """
    waiting, seen = [("#", document)], set[int]()
    while waiting:
        pointer, node = waiting.pop()
        if id(node) in seen:  # An alias.
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(f"{pointer}/{number}", item) for number, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            first = dict[tuple[str, str], yaml.Node]()
            for key, value in node.value:
                is_text = isinstance(key, yaml.ScalarNode)
                waiting.append((f"{pointer}/{key.value if is_text else '?'}", value))
                if not is_text or key.tag == _MERGE:
                    continue
                earlier = first.setdefault((key.tag, key.value), key)
                if earlier is not key:
                    lines = (earlier.start_mark.line + 1, key.start_mark.line + 1)
                    yield RepeatedKey(f"{pointer}/{key.value}", lines)


@dataclass(slots=True)
class _OpenCollection:
    """A collection whose end has not been read."""

    anchor: str | None
    is_mapping: bool
    values_before: int
    text_before: int
    height: int = 1
    children: int = 0


class _Size:
    """Size read so far, with expanded aliases."""

    def __init__(self, most_values: int) -> None:
        self._most_values = most_values
        self._values = self._text = 0
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[int, int, int] | None] = {}
        """Values, characters and height of each anchor; None until its collection is closed."""

    def add(self, event: yaml.Event) -> None:
        """Count one event.

        Raises:
            NotReadable: A bound is exceeded.
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
                self._open.append(_OpenCollection(event.anchor, is_mapping, *before))
                if event.anchor:
                    self._anchors[event.anchor] = None
            case yaml.CollectionEndEvent():
                self._close()
            case yaml.AliasEvent():
                # The composer reports an undefined alias with its place.
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


def _not_yaml(error: yaml.MarkedYAMLError, text: str) -> NotReadable:
    """Describe a syntax error: line, column, and the line where the value begins."""
    mark, begin = error.problem_mark, error.context_mark
    if mark is None:
        return NotReadable(f"is not YAML: {error.problem}")
    line, column = _position(mark, text)
    message = f"is not YAML: line {line}, column {column}: {error.problem}"
    if begin is None or (began := _position(begin, text)[0]) >= line:
        return NotReadable(message, (line,))
    return NotReadable(f"{message}, {error.context} that begins on line {began}", (began, line))


def _position(mark: yaml.Mark, text: str) -> tuple[int, int]:
    """Line and column of a mark. libyaml reports the end of a text on an extra line."""
    before = text[: mark.index]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    if len(str(node.value)) > MAX_NUMBER:
        raise ValueError(f"a number of {len(node.value)} characters; write at most {MAX_NUMBER}")
    kind = "int" if node.tag.endswith(":int") else "float"
    return getattr(loader, f"construct_yaml_{kind}")(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)
