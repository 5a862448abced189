"""State trees: what `state_dict()` returns, as JSON beside named tensors, and back, exact and without pickle.

JSON knows neither integer keys nor tuples, bytes, NaN or arrays. What it does not know becomes an object with the
key `$`, which names the kind; a tensor becomes the name under which it lies in the shard. What is on no list is
refused, with the path to it: a checkpoint that silently loses a part of the state is worse than none.
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

from holdfast_worker.checkpoint.checksums import raw as bytes_of
from holdfast_worker.distributed.sharding import is_divided, is_storable, memory_of, sharding_of
from holdfast_worker.distributed.tensor_layout import DTYPES, NAMES, Owner
from holdfast_worker.protocol.reports import Json

TAG: Final = "$"

KEYED: Final = frozenset({"dict", "ordered", "counter"})
"""Kinds whose items are pairs."""

A_TENSOR: Final = "a tensor"
"""The entry of a tensor that is held."""


class UnserializableState(TypeError):
    """This object cannot be part of a checkpoint; turn it into numbers, text or tensors in `state_dict`."""


class Encoder:
    """Trees on their way out: collects the tensors of all trees that it encodes, each under the path to it."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.holders: dict[str, Owner] = {}
        """The holder of each of them."""
        self.holder_of: Callable[[str], Owner] = lambda _: Owner.ALIKE
        """The holder of the tensor at a path."""
        self._known: dict[tuple[object, ...], str] = {}

    def encode(self, value: object, path: str) -> Json:
        """`value` as JSON; its tensors are in `tensors` afterwards. A tensor met twice is held once.

        Raises:
            Unstorable: something in it is of a kind that no checkpoint can hold; names the path.
        """
        if isinstance(value, Tensor):
            return {TAG: "tensor", "name": self._keep(value, path)}
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

    def _keep(self, tensor: Tensor, path: str) -> str:
        flaw = _flaw(tensor)
        if flaw:
            raise UnserializableState(f"{path} is {flaw}, which a checkpoint cannot hold")
        here = memory_of(tensor)
        holder = Owner.SHARDS if is_divided(tensor) else self.holder_of(path)
        # What a rank has for itself is apart from what all share, though it may be the same memory.
        is_own = holder is Owner.EACH
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
        if here.numel() and identity in self._known:
            return self._known[identity]
        name = path
        while name in self.tensors:
            # Two keys that read alike, such as 0 and "0".
            name += "'"
        self.tensors[name] = tensor
        self.holders[name] = holder
        self._known[identity] = name
        return name


class Inline(Encoder):
    """The same for small trees: tensors are held in the tree itself."""

    def encode(self, value: object, path: str) -> Json:
        """`value` as JSON.

        Raises:
            Unstorable: see `Encoder`.
        """
        if not isinstance(value, Tensor):
            return super().encode(value, path)
        flaw = _flaw(value)
        if flaw:
            raise UnserializableState(f"{path} is {flaw}, which a checkpoint cannot hold")
        data = bytes(bytes_of(value))
        return {
            TAG: "held",
            "dtype": NAMES[value.dtype],
            "shape": list(value.shape),
            "base64": base64.b64encode(data).decode(),
        }


def decode(raw: Json, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that was encoded, with its tensors on the CPU.

    Raises:
        KeyError: a tensor is missing.
        ValueError: not something that `Encoder` wrote.
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


def leaves(raw: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """Where the tensors of an encoded tree are, and under which name each is held; tied ones share a name."""
    if isinstance(raw, list):
        for i, item in enumerate(raw):
            yield from leaves(item, f"{path}[{i}]")
    if not isinstance(raw, dict):
        return
    kind = raw.get(TAG)
    if kind is None:
        for key, item in raw.items():
            yield from leaves(item, _step(path, key))
    elif kind == "tensor":
        yield path, str(raw["name"])
    elif kind in KEYED:
        pairs: Any = raw["items"]
        for key, item in pairs:
            yield from leaves(item, _step(path, decode(key, {})))
    elif "items" in raw:
        yield from leaves(raw["items"], path)


def entries(raw: Json, path: str) -> Iterator[tuple[str, str]]:
    """Everything in an encoded tree as text by the path to it: of a tensor that it is one, of tied tensors which one is held."""
    if isinstance(raw, list) and any(isinstance(item, list | dict) for item in raw):
        for i, item in enumerate(raw):
            yield from entries(item, f"{path}[{i}]")
    elif isinstance(raw, dict) and TAG not in raw:
        if not raw:
            yield path, "an empty dict"
        for key, item in raw.items():
            yield from entries(item, _step(path, key))
    elif isinstance(raw, dict):
        yield from _entries_of_kind(raw, path)
    else:
        yield path, json.dumps(raw)


def _entries_of_kind(raw: Any, path: str) -> Iterator[tuple[str, str]]:
    """The same of a value that JSON has no word for."""
    kind = raw[TAG]
    if kind == "tensor":
        yield path, A_TENSOR if raw["name"] == path else f"the same tensor as {raw['name']}"
    elif kind in KEYED:
        yield f"{path}[]", f"a {kind}"
        for key, item in raw["items"]:
            yield from entries(item, _step(path, decode(key, {})))
        yield from entries(raw.get("metadata"), f"{path}._metadata")
    elif "items" in raw:
        yield f"{path}[]", f"a {kind} {raw.get('longest', '')}".rstrip()
        yield from entries(raw["items"], path)
    else:
        yield path, json.dumps(raw)


def is_expanded(tensor: Tensor) -> bool:
    """Whether several elements of a tensor share one place in memory."""
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_nested:
        return False
    layout = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in layout)


def _flaw(tensor: Tensor) -> str | None:
    """What about a tensor keeps it out of a checkpoint; None if nothing does."""
    if tensor.is_nested:
        return "a nested tensor"
    if type(tensor) not in (Tensor, Parameter):
        if is_lazy(tensor):
            return "a parameter that has no shape before the first forward"
        if is_traceable_wrapper_subclass(tensor) and not sharding_of(tensor):
            return f"a {type(tensor).__name__}, whose values are in other tensors"
    return _flaw_of_memory(tensor)


def _flaw_of_memory(tensor: Tensor) -> str | None:
    """The same of a tensor that is none of a special class."""
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.device.type == "meta":
        return "a tensor without data"
    if not is_storable(tensor):
        return "a tensor whose values are still to be summed over ranks"
    if tensor.dtype not in NAMES:
        return f"a tensor of {tensor.dtype}"
    return None


def _step(path: str, key: object) -> str:
    """The path of a child, as a person would write it."""
    if not isinstance(key, str):
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


def _encode_items(encoder: Encoder, items: Any, path: str) -> list[Json]:
    return [encoder.encode(item, f"{path}[{i}]") for i, item in enumerate(items)]


def _encode_pairs(encoder: Encoder, value: Mapping[Any, Any], path: str) -> list[Json]:
    return [
        [encoder.encode(k, f"{path}.<key>"), encoder.encode(v, _step(path, k))]
        for k, v in value.items()
    ]


def _encode_dict(encoder: Encoder, value: Any, path: str) -> Json:
    if all(type(key) is str for key in value) and TAG not in value:
        return {key: encoder.encode(item, _step(path, key)) for key, item in value.items()}
    return {TAG: "dict", "items": _encode_pairs(encoder, value, path)}


def _encode_ordered(encoder: Encoder, value: Any, path: str) -> Json:
    """`Module.state_dict` hangs the versions of its modules on the dictionary, outside of its items."""
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
    """A set in an order that is the same in every process."""
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


def _decode_held(raw: Any) -> Tensor:
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
    "held": lambda raw, _: _decode_held(raw),
    "array": _decode_array,
    "scalar": lambda raw, _: _decode_array(raw, _)[()],
}
