"""Encodes a state part by part, and reuses the text of the parts that have not changed.

The state that a rank has alone is needed twice in each step: before the first sum of gradients, and at the next boundary to find out
whether it has changed since. Most of it is the same each time, such as the generators that the script does not use. Reading a
generator and comparing it with a copy takes a tenth of the time of encoding it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from holdfast_worker.checkpoint.checksums import tensor_bytes
from holdfast_worker.checkpoint.state_dict import TAG, InlineEncoder
from holdfast_worker.protocol.reports import Json

CACHED_KEYS: Final = 4096
"""Keys whose JSON is kept. A lower value quotes the names of many buffers in each step; a higher value takes memory."""


class CachedEncoder:
    """Encodes a tree of dicts and lists to the JSON that `InlineEncoder` returns."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[object, str]] = {}
        """Identity and text of the parts of the last tree, by path."""

    def encode(self, tree: object, path: str) -> str:
        """Encode a tree as JSON text.

        Raises:
            UnserializableState: see `Encoder`.
        """
        parts: dict[str, tuple[object, str]] = {}
        text = self._encode(tree, path, parts)
        self._parts = parts
        return text

    def _encode(self, value: Any, path: str, parts: dict[str, tuple[object, str]]) -> str:
        kind = type(value)
        if value is None:
            return "null"
        if kind in (bool, int, str):
            return json.dumps(value)
        if kind is dict and TAG not in value and all(type(key) is str for key in value):
            items = [
                f"{_quote(key)}:{self._encode(item, f'{path}.{key}', parts)}"
                for key, item in value.items()
            ]
            return f"{{{','.join(items)}}}"
        if kind is list:
            items = [self._encode(item, f"{path}[{i}]", parts) for i, item in enumerate(value)]
            return f"[{','.join(items)}]"
        identity = _identity(value)
        known = self._parts.get(path)
        if known is None or identity is None or known[0] != identity:
            known = identity, dump(InlineEncoder().encode(value, path))
        parts[path] = known
        return known[1]


def dump(raw: Json) -> str:
    """JSON text without spaces."""
    return json.dumps(raw, separators=(",", ":"))


@lru_cache(CACHED_KEYS)
def _quote(key: str) -> str:
    return json.dumps(key)


def _identity(value: Any) -> object:
    """A copy that equals only those of values with the same encoding; None if there is none.

    Equality of the values is not enough: 1 equals True, and 0.0 equals -0.0.
    """
    kind = type(value)
    inner: object = None
    if kind is Tensor and value.layout is torch.strided:
        inner = value.dtype, value.shape, bytes(tensor_bytes(value))
    elif kind is np.ndarray and not value.dtype.hasobject:
        inner = value.dtype.str, value.shape, value.tobytes()
    elif kind is float:
        inner = repr(value)
    elif kind in (bool, int, str):
        inner = value
    elif kind is tuple and set(map(type, value)) == {int}:
        inner = value  # The 625 numbers of Python's generator, among others.
    elif kind in (tuple, list):
        inner = _identities(value)
    elif kind in (dict, OrderedDict):
        # State trees of modules have versions in an attribute.
        parts = getattr(value, "_metadata", ()), *value, *value.values()
        inner = _identities(parts)
    elif value is None:
        inner = True
    return None if inner is None else (kind, inner)


def _identities(values: Iterable[Any]) -> object:
    """The identities of several values; None if one of them has none."""
    identities = tuple(map(_identity, values))
    return None if None in identities else identities
