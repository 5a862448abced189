"""Checkpoints that others wrote: what is in a file of `torch.save` or of safetensors, without running any code in it.

A pickle is a program. `torch.load` with `weights_only` runs none but tensors, containers and numbers; what needs more is
refused. So is a folder of torch's distributed checkpoint, of which the index is a pickle that nothing reads safely.
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
"""What DDP and `torch.compile` put before every name."""


class UnreadableWeights(Exception):
    """This file cannot be begun from; the message says why."""


def begin_from(path: Path, tracked: TrackedState) -> None:
    """Put what is tracked where the file has it, as far as it has it; at least one thing.

    Raises:
        Unreadable: it is no such file, or has nothing of what is tracked.
        Mismatch: what it has does not fit.
    """
    found = _choose(read(path), tracked.names)
    if not found:
        names = " or ".join(tracked.names)
        raise UnreadableWeights(f"{path} has no {names}: name what is tracked as the file does")
    homes = tracked.homes()
    try:
        state = {name: _at_home(name, part, homes) for name, part in found.items()}
        tracked.load_some(state)
    except (UnserializableState, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise StateMismatch(f"{path} does not fit what the script has: {error}") from error


def read(path: Path) -> Any:
    """All that is in a file, on the CPU.

    Raises:
        Unreadable: it is not there, of another kind, broken, or a program.
    """
    if path.is_dir():
        raise UnreadableWeights(
            f"{path} is a folder. The index of a distributed checkpoint of torch is a pickle, which may run any code: "
            "write it as one file, where you trust it (torch.distributed.checkpoint.format_utils.dcp_to_torch_save)"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UnreadableWeights(f"{path} cannot be read: {error.strerror or error}") from error
    except UnpicklingError as error:
        raise UnreadableWeights(
            f"{path} holds more than tensors, containers and numbers, and would have to be run to be read: save it again "
            f"with `state_dict()`s alone ({str(error).partition(chr(10))[0]})"
        ) from error
    except (RuntimeError, ValueError, KeyError, EOFError, SafetensorError) as error:
        raise UnreadableWeights(f"{path} is no checkpoint that can be read: {error}") from error


def _choose(tree: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What a file has for each name, under any of the keys that people give it."""
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
    return {name: _bare(part) for name, part in found.items()}


def _bare(part: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same without what wrappers put before every name."""
    for prefix in PREFIXES:
        if part and all(isinstance(key, str) and key.startswith(prefix) for key in part):
            return _bare({key.removeprefix(prefix): value for key, value in part.items()})
    return dict(part)


def _at_home(name: str, part: Mapping[Any, Any], homes: DestinationTensors) -> Any:
    """A state, with every tensor that is sharded here as the shard of this rank."""
    encoder = Encoder()
    tree = encoder.encode(dict(part), name)
    return decode(tree, {n: _shard(n, t, homes) for n, t in encoder.tensors.items()})


def _shard(name: str, tensor: Tensor, homes: DestinationTensors) -> Tensor:
    kind = TensorSpec.of(tensor)
    sharding = homes.sharding(name, kind)
    if sharding is None or homes.live.get(name, tensor).shape != tensor.shape:
        return tensor
    region = sharding.region(kind)
    local = (
        tensor.reshape(-1)[region.start : region.stop]
        if isinstance(region, ElementRange)
        else tensor[region.slices]
    )
    return sharding.whole(local.reshape(sharding.local_shape(kind)).clone(), kind)
