"""Imports weights from files of `torch.save` or safetensors, without running code from them.

A pickle is a program. `torch.load` with `weights_only` accepts only tensors, containers and numbers; other content is
refused. A directory of `torch.distributed.checkpoint` is also refused, because no reader loads its pickled index safely.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.state_dict import Encoder, UnserializableState, decode
from holdfast_worker.checkpoint.stateful import StateMismatch, TrackedState
from holdfast_worker.distributed.tensor_layout import ElementRange, TensorSpec

PREFIXES: Final = ("module.", "_orig_mod.")
"""Prefixes that DDP and `torch.compile` add to every name."""


class UnreadableWeights(Exception):
    """A file that cannot be imported; the message gives the reason."""


def begin_from(path: Path, tracked: TrackedState) -> None:
    """Load the state that the file has of the tracked objects, at least one of them.

    Raises:
        UnreadableWeights: the file is unreadable or has no tracked object.
        StateMismatch: its state does not fit.
    """
    found = _select_states(read_file(path), tracked.names)
    if not found:
        names = " or ".join(tracked.names)
        raise UnreadableWeights(f"{path} has no {names}: track objects under the names in the file")
    destinations = tracked.destinations()
    try:
        state = {name: _shard_state(name, part, destinations) for name, part in found.items()}
        tracked.load_partial(state)
    except (UnserializableState, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise StateMismatch(f"{path} does not fit the tracked objects: {error}") from error


def read_file(path: Path) -> Any:
    """Read the contents of a file, on the CPU.

    Raises:
        UnreadableWeights: the file is missing, corrupt, of an unsupported type, or would run code.
    """
    if path.is_dir():
        raise UnreadableWeights(
            f"{path} is a directory. The index of a torch distributed checkpoint is a pickle, which may run any code: "
            "if you trust it, convert it to one file (torch.distributed.checkpoint.format_utils.dcp_to_torch_save)"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UnreadableWeights(f"{path} cannot be read: {error.strerror or error}") from error
    except UnpicklingError as error:
        raise UnreadableWeights(
            f"{path} holds more than tensors, containers and numbers, so reading it would run code from it: save it again "
            f"with only `state_dict()`s ({str(error).partition(chr(10))[0]})"
        ) from error
    except (RuntimeError, ValueError, KeyError, EOFError, SafetensorError) as error:
        raise UnreadableWeights(f"{path} is not a readable checkpoint: {error}") from error


def _select_states(tree: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The state in a file for each name, under any of the usual keys."""
    if not isinstance(tree, Mapping):
        return {}
    found = {
        name: tree[key]
        for name in names
        for key in (name, f"{name}_state_dict", f"{name}_state")
        if isinstance(tree.get(key), Mapping)
    }
    if "model" in names and "model" not in found:
        inner = tree.get("state_dict", tree)
        if isinstance(inner, Mapping) and any(isinstance(v, Tensor) for v in inner.values()):
            found["model"] = inner
    return {name: _strip_prefixes(part) for name, part in found.items()}


def _strip_prefixes(part: Mapping[Any, Any]) -> dict[Any, Any]:
    """The state without the prefixes of wrappers."""
    for prefix in PREFIXES:
        if part and all(isinstance(key, str) and key.startswith(prefix) for key in part):
            return _strip_prefixes({key.removeprefix(prefix): value for key, value in part.items()})
    return dict(part)


def _shard_state(name: str, part: Mapping[Any, Any], destinations: DestinationTensors) -> Any:
    """A state in which every tensor that is sharded here is replaced by this rank's shard."""
    encoder = Encoder()
    tree = encoder.encode(dict(part), name)
    return decode(tree, {n: _shard_tensor(n, t, destinations) for n, t in encoder.tensors.items()})


def _shard_tensor(name: str, tensor: Tensor, destinations: DestinationTensors) -> Tensor:
    kind = TensorSpec.from_tensor(tensor)
    sharding = destinations.sharding(name, kind)
    if sharding is None or destinations.live.get(name, tensor).shape != tensor.shape:
        return tensor
    region = sharding.region(kind)
    local = (
        tensor.reshape(-1)[region.start : region.stop]
        if isinstance(region, ElementRange)
        else tensor[region.slices]
    )
    return sharding.assemble(local.reshape(sharding.local_shape(kind)).clone(), kind)
