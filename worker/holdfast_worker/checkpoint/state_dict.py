"""Encodes `state_dict()` trees to JSON and named tensors, and decodes them without pickle.

JSON has no integer keys, tuples, bytes, NaN or arrays. Such a value becomes an object with the key `$`, which names the kind.
A tensor becomes the name under which the shard stores it. Any other type is refused with its path, because a checkpoint
that silently loses part of the state is worse than none.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import Parameter, is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast_worker.checkpoint.checksums import tensor_bytes as bytes_of
from holdfast_worker.distributed.sharding import is_divided, is_storable, local_memory, sharding_of
from holdfast_worker.distributed.tensor_layout import DTYPES, NAMES, Owner
from holdfast_worker.protocol.reports import Json

TAG: Final = "$"

KEYED: Final = frozenset({"dict", "ordered", "counter"})
"""Kinds whose items are key-value pairs."""

A_TENSOR: Final = "a tensor"
"""The text of a tensor entry that is stored under its own path."""


class UnserializableState(TypeError):
    """An unsupported object; convert it to numbers, text or tensors in `state_dict`."""


class Encoder:
    """Encodes trees to JSON and collects their tensors by path."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.owners: dict[str, Owner] = {}
        """The owner of each collected tensor."""
        self.owner_of: Callable[[str], Owner] = lambda _: Owner.VERIFIED_REPLICA
        """Returns the owner of the tensor at a path."""
        self._names: dict[tuple[object, ...], str] = {}

    def encode(self, value: object, path: str) -> Json:
        """Encode `value` as JSON and add its tensors to `tensors`.

        A tensor that occurs twice is stored once.

        Raises:
            UnserializableState: `value` contains an unsupported type; the message names the path.
        """
        if isinstance(value, Tensor):
            return {TAG: "tensor", "name": self._add_tensor(value, path)}
        if value is None or type(value) in (bool, int, str):
            return value  # type: ignore[return-value]  # narrowed by exact type, which mypy does not follow
        if type(value) is float:
            return value if math.isfinite(value) else {TAG: "float", "text": repr(value)}
        encode = _ENCODERS.get(type(value))
        if encode is not None:
            return encode(self, value, path)
        if isinstance(value, np.generic):
            return {**_encode_array(np.asarray(value), path), TAG: "scalar"}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise UnserializableState(f"{path} is a {kind}, which a checkpoint cannot hold")

    def _add_tensor(self, tensor: Tensor, path: str) -> str:
        problem = _unstorable_reason(tensor)
        if problem:
            raise UnserializableState(f"{path} is {problem}, which a checkpoint cannot hold")
        here = local_memory(tensor)
        holder = Owner.SHARDED if is_divided(tensor) else self.owner_of(path)
        # Per-rank state is stored apart from shared state, even if both use the same memory.
        is_own = holder is Owner.PER_RANK
        identity = (
            is_own,
            here.data_ptr(),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
            *tensor.shape,
            *tensor.stride(),
        )
        if here.numel() and identity in self._names:
            return self._names[identity]
        name = path
        while name in self.tensors:
            # Different keys may have the same path, such as 0 and "0".
            name += "'"
        self.tensors[name] = tensor
        self.owners[name] = holder
        self._names[identity] = name
        return name


class InlineEncoder(Encoder):
    """An encoder for small trees that stores tensors inline."""

    def encode(self, value: object, path: str) -> Json:
        """Encode `value` as JSON.

        Raises:
            UnserializableState: see `Encoder`.
        """
        if not isinstance(value, Tensor):
            return super().encode(value, path)
        problem = _unstorable_reason(value)
        if problem:
            raise UnserializableState(f"{path} is {problem}, which a checkpoint cannot hold")
        data = bytes(bytes_of(value))
        return {
            TAG: "held",
            "dtype": NAMES[value.dtype],
            "shape": list(value.shape),
            "base64": base64.b64encode(data).decode(),
        }


def decode(raw: Json, tensors: Mapping[str, Tensor]) -> Any:
    """Decode an encoded tree, with its tensors on the CPU.

    Raises:
        KeyError: a tensor is missing.
        ValueError: `Encoder` did not write this tree.
    """
    if isinstance(raw, list):
        return [decode(item, tensors) for item in raw]
    if not isinstance(raw, dict):
        return raw
    if TAG not in raw:
        return {key: decode(value, tensors) for key, value in raw.items()}
    if raw[TAG] == "tensor":
        return tensors[str(raw["name"])]
    try:
        decoder = _DECODERS[str(raw[TAG])]
    except KeyError as error:
        raise ValueError(f"unknown kind {raw[TAG]!r} in a state tree") from error
    return decoder(raw, tensors)


def tensor_paths(raw: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """Paths of the tensors in an encoded tree, with their names; tied tensors share a name."""
    if isinstance(raw, list):
        for i, item in enumerate(raw):
            yield from tensor_paths(item, f"{path}[{i}]")
    if not isinstance(raw, dict):
        return
    kind = raw.get(TAG)
    if kind is None:
        for key, item in raw.items():
            yield from tensor_paths(item, _child_path(path, key))
    elif kind == "tensor":
        yield path, str(raw["name"])
    elif kind in KEYED:
        pairs: Any = raw["items"]
        for key, item in pairs:
            yield from tensor_paths(item, _child_path(path, decode(key, {})))
    elif "items" in raw:
        yield from tensor_paths(raw["items"], path)


def entries(raw: Json, path: str) -> Iterator[tuple[str, str]]:
    """Entries of an encoded tree as path and text; a tied tensor's text names the stored one."""
    if isinstance(raw, list) and any(isinstance(item, list | dict) for item in raw):
        for i, item in enumerate(raw):
            yield from entries(item, f"{path}[{i}]")
    elif isinstance(raw, dict) and TAG not in raw:
        if not raw:
            yield path, "an empty dict"
        for key, item in raw.items():
            yield from entries(item, _child_path(path, key))
    elif isinstance(raw, dict):
        yield from _entries_of_kind(raw, path)
    else:
        yield path, json.dumps(raw)


def _entries_of_kind(raw: Any, path: str) -> Iterator[tuple[str, str]]:
    """The entries of a tagged value, which plain JSON cannot express."""
    kind = raw[TAG]
    if kind == "tensor":
        yield path, A_TENSOR if raw["name"] == path else f"the same tensor as {raw['name']}"
    elif kind in KEYED:
        yield f"{path}[]", f"a {kind}"
        for key, item in raw["items"]:
            yield from entries(item, _child_path(path, decode(key, {})))
        yield from entries(raw.get("metadata"), f"{path}._metadata")
    elif "items" in raw:
        yield f"{path}[]", f"a {kind} {raw.get('longest', '')}".rstrip()
        yield from entries(raw["items"], path)
    else:
        yield path, json.dumps(raw)


def is_expanded(tensor: Tensor) -> bool:
    """Whether several elements of a tensor share one memory location."""
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_nested:
        return False
    layout = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in layout)


def _unstorable_reason(tensor: Tensor) -> str | None:
    """Why a tensor cannot be checkpointed; None if it can."""
    if tensor.is_nested:
        return "a nested tensor"
    if type(tensor) not in (Tensor, Parameter):
        if is_lazy(tensor):
            return "a parameter that has no shape before the first forward"
        if is_traceable_wrapper_subclass(tensor) and not sharding_of(tensor):
            return f"a {type(tensor).__name__}, whose values are in other tensors"
    return _unstorable_memory(tensor)


def _unstorable_memory(tensor: Tensor) -> str | None:
    """Why a tensor's memory cannot be stored; None if it can."""
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.device.type == "meta":
        return "a tensor without data"
    if not is_storable(tensor):
        return "a tensor whose values are pending a reduction over ranks"
    if tensor.dtype not in NAMES:
        return f"a tensor of {tensor.dtype}"
    return None


def _child_path(path: str, key: object) -> str:
    """The path of a child, in Python notation."""
    if not isinstance(key, str):
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


def _encode_items(encoder: Encoder, items: Any, path: str) -> list[Json]:
    if set(map(type, items)) == {int}:  # The 625 numbers of Python's generator, among others.
        return list(items)
    return [encoder.encode(item, f"{path}[{i}]") for i, item in enumerate(items)]


def _encode_pairs(encoder: Encoder, value: Mapping[Any, Any], path: str) -> list[Json]:
    return [
        [encoder.encode(k, f"{path}.<key>"), encoder.encode(v, _child_path(path, k))]
        for k, v in value.items()
    ]


def _encode_dict(encoder: Encoder, value: Any, path: str) -> Json:
    if all(type(key) is str for key in value) and TAG not in value:
        return {key: encoder.encode(item, _child_path(path, key)) for key, item in value.items()}
    return {TAG: "dict", "items": _encode_pairs(encoder, value, path)}


def _encode_ordered(encoder: Encoder, value: Any, path: str) -> Json:
    """Encode an `OrderedDict`.

    `Module.state_dict` attaches module versions as an attribute, outside of the items.
    """
    metadata = encoder.encode(getattr(value, "_metadata", None), f"{path}._metadata")
    items = _encode_pairs(encoder, value, path)
    return {TAG: "ordered", "items": items, "metadata": metadata}


def _encode_array(value: Any, path: str) -> dict[str, Json]:
    if value.dtype.hasobject:
        raise UnserializableState(f"{path} is an array of objects, which a checkpoint cannot hold")
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return {TAG: "array", "dtype": value.dtype.str, "shape": list(value.shape), "base64": data}


def _tagged(tag: str) -> Callable[[Encoder, Any, str], Json]:
    return lambda e, v, path: {TAG: tag, "items": _encode_items(e, v, path)}


def _unordered(tag: str) -> Callable[[Encoder, Any, str], Json]:
    """An encoder of sets, in the same order in every process."""
    return lambda e, v, path: {
        TAG: tag,
        "items": sorted(_encode_items(e, v, path), key=json.dumps),
    }


_ENCODERS: Final[Mapping[type, Callable[[Encoder, Any, str], Json]]] = {
    list: _encode_items,
    dict: _encode_dict,
    tuple: _tagged("tuple"),
    set: _unordered("set"),
    frozenset: _unordered("frozenset"),
    deque: lambda e, v, path: {
        TAG: "deque",
        "items": _encode_items(e, v, path),
        "longest": v.maxlen,
    },
    OrderedDict: _encode_ordered,
    Counter: lambda e, v, path: {TAG: "counter", "items": _encode_pairs(e, v, path)},
    bytes: lambda _, v, __: {TAG: "bytes", "base64": base64.b64encode(v).decode()},
    complex: lambda e, v, path: {TAG: "complex", "items": _encode_items(e, (v.real, v.imag), path)},
    torch.dtype: lambda _, v, __: {TAG: "dtype", "name": str(v).removeprefix("torch.")},
    torch.device: lambda _, v, __: {TAG: "device", "name": str(v)},
    torch.Size: _tagged("size"),
    np.ndarray: lambda _, v, path: _encode_array(v, path),
}


def _items(raw: Any, tensors: Mapping[str, Tensor]) -> list[Any]:
    return [decode(item, tensors) for item in raw["items"]]


def _pairs(raw: Any, tensors: Mapping[str, Tensor]) -> list[tuple[Any, Any]]:
    return [(decode(key, tensors), decode(value, tensors)) for key, value in raw["items"]]


def _decode_ordered(raw: Any, tensors: Mapping[str, Tensor]) -> OrderedDict[Any, Any]:
    value = OrderedDict(_pairs(raw, tensors))
    metadata = decode(raw["metadata"], tensors)
    if metadata is not None:
        value._metadata = metadata  # type: ignore[attr-defined]  # noqa: SLF001 - where torch looks for it
    return value


def _decode_array(raw: Any, _: Mapping[str, Tensor]) -> Any:
    flat = np.frombuffer(base64.b64decode(raw["base64"]), dtype=np.dtype(raw["dtype"]))
    return flat.reshape(raw["shape"]).copy()


def _decode_inline_tensor(raw: Any) -> Tensor:
    data = np.frombuffer(base64.b64decode(raw["base64"]), dtype=np.uint8)
    flat = torch.from_numpy(data.copy())
    return flat.view(DTYPES[raw["dtype"]]).reshape(raw["shape"])


_DECODERS: Final[Mapping[str, Callable[[Any, Mapping[str, Tensor]], Any]]] = {
    "float": lambda raw, _: float(raw["text"]),
    "tuple": lambda raw, t: tuple(_items(raw, t)),
    "set": lambda raw, t: set(_items(raw, t)),
    "frozenset": lambda raw, t: frozenset(_items(raw, t)),
    "deque": lambda raw, t: deque(_items(raw, t), raw["longest"]),
    "dict": lambda raw, t: dict(_pairs(raw, t)),
    "ordered": _decode_ordered,
    "counter": lambda raw, t: Counter(dict(_pairs(raw, t))),
    "bytes": lambda raw, _: base64.b64decode(raw["base64"]),
    "complex": lambda raw, t: complex(*_items(raw, t)),
    "dtype": lambda raw, _: getattr(torch, raw["name"]),
    "device": lambda raw, _: torch.device(raw["name"]),
    "size": lambda raw, t: torch.Size(_items(raw, t)),
    "held": lambda raw, _: _decode_inline_tensor(raw),
    "array": _decode_array,
    "scalar": lambda raw, _: _decode_array(raw, _)[()],
}
