"""What a script asked to keep: objects with a `state_dict`, by the names it gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from holdfast_worker.homes import Homes
from holdfast_worker.sharding import memory_of
from holdfast_worker.tree import Encoder


@runtime_checkable
class Stateful(Protocol):
    """Whatever can give its state away and take it back."""

    def state_dict(self) -> Any:
        """The state, as a tree of plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take such a state back."""


class Mismatch(Exception):
    """A checkpoint holds other things than the script tracks."""


class Tracked:
    """Objects whose state goes into checkpoints, under names."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        """Track `objects`. A wrapper is looked through: names in a checkpoint do not depend on how it was run.

        Raises:
            TypeError: one of them has no state to give.
        """
        for name, item in objects.items():
            if not isinstance(item, Stateful):
                raise TypeError(
                    f"{name} cannot be tracked: it has no state_dict and load_state_dict"
                )
        self._objects = {n: unwrap(o) for n, o in objects.items() if isinstance(o, Stateful)}
        self._replicated = {
            id(parameter)
            for item in objects.values()
            if isinstance(item, DistributedDataParallel)
            for parameter in item.parameters()
        }

    def state(self) -> dict[str, Any]:
        """The state of all of them, as it is now; its tensors are the live ones."""
        return {name: item.state_dict() for name, item in self._objects.items()}

    def check(self) -> None:
        """Find out now, rather than at the first save, whether a checkpoint can hold all of it.

        Raises:
            Unstorable: it cannot; names what it cannot hold.
        """
        encoder = Encoder()
        for name, state in self.state().items():
            encoder.encode(state, name)

    def homes(self) -> Homes:
        """Where the tensors of a checkpoint belong."""
        encoder = Encoder()
        for name, item in self._objects.items():
            # The parameters themselves: what is copied onto itself then costs nothing.
            state = (
                item.state_dict(keep_vars=True)
                if isinstance(item, nn.Module)
                else item.state_dict()
            )
            encoder.encode(state, name)
        parameters = {
            f"{name}.state[{number}]": parameter
            for name, item in self._objects.items()
            if isinstance(item, Optimizer)
            for number, parameter in enumerate(p for g in item.param_groups for p in g["params"])
        }
        return Homes(encoder.tensors, parameters)

    @property
    def names(self) -> tuple[str, ...]:
        """Under which they are tracked."""
        return tuple(self._objects)

    def load_some(self, state: Mapping[str, Any]) -> None:
        """Take back the state of some of them."""
        for name, part in state.items():
            self._objects[name].load_state_dict(part)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take a state back.

        Raises:
            Mismatch: it is the state of other things.
        """
        if state.keys() != self._objects.keys():
            raise Mismatch(
                f"the checkpoint holds {_listed(state)}, and the script tracks {_listed(self._objects)}: "
                "track the same, or start with a new store"
            )
        self.load_some(state)

    def replicated(self) -> tuple[str, ...]:
        """Beginnings of the names of tensors that are the same on all ranks, so that any rank may write them.

        Only what DDP keeps the same: parameters, and what an optimizer made of them. Buffers differ, as each rank
        updates its own until the first rank's are broadcast again: of those, the first rank's are the truth.
        """
        names: list[str] = []
        for name, item in self._objects.items():
            if isinstance(item, nn.Module):
                parameters = item.named_parameters(remove_duplicate=False)
                names += [f"{name}.{key}" for key, p in parameters if id(p) in self._replicated]
            if isinstance(item, Optimizer) and self._is_replicated(item):
                names.append(f"{name}.state[")
        return tuple(names)

    def resting(self) -> frozenset[int]:
        """Where the tensors lie that nobody changes but an optimizer in its `step`; not the buffers of a model, which change
        as it computes."""
        kept = [
            value
            for item in self._objects.values()
            if isinstance(item, Optimizer)
            for state in item.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        models = (item for item in self._objects.values() if isinstance(item, nn.Module))
        parameters = (parameter for model in models for parameter in model.parameters())
        return frozenset(memory_of(tensor).data_ptr() for tensor in (*kept, *parameters))

    def _is_replicated(self, optimizer: Optimizer) -> bool:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        return all(id(parameter) in self._replicated for parameter in parameters)


def unwrap(item: Stateful) -> Stateful:
    """The object inside DDP and `torch.compile`, which put a prefix before every name."""
    if isinstance(item, DistributedDataParallel):
        return unwrap(item.module)
    inner = getattr(item, "_orig_mod", None)
    return unwrap(inner) if isinstance(inner, nn.Module) else item


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "nothing"
