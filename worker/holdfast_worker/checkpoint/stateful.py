"""What a script asked to keep: objects with a `state_dict`, by the names it gave them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.state_dict import Encoder, UnserializableState, is_expanded
from holdfast_worker.distributed.sharding import is_sharded, memory_of
from holdfast_worker.distributed.tensor_layout import Owner
from holdfast_worker.protocol.reports import Json


@runtime_checkable
class Stateful(Protocol):
    """Whatever can give its state away and take it back."""

    def state_dict(self) -> Any:
        """The state, as a tree of plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take such a state back."""


class OfFirst:
    """Base of objects of which the first rank holds the state for all ranks."""


class StateMismatch(Exception):
    """A checkpoint holds other things than the script tracks."""


class TrackedState:
    """Objects whose state goes into checkpoints, under names."""

    def __init__(
        self,
        objects: Mapping[str, object],
        per_rank: Collection[str] | bool = False,
        apart: Collection[nn.Module] = (),
    ) -> None:
        """Track `objects`. A wrapper is looked through: names in a checkpoint do not depend on how it was run.

        `per_rank`: names of those of which each rank keeps its own; True: of all. So it does of the models that are `apart`, and
        of their optimizers.

        Raises:
            TypeError: one of them has no state to give.
            ValueError: `per_rank` names something else.
        """
        names = {per_rank} if isinstance(per_rank, str) else per_rank
        unknown = () if isinstance(names, bool) else sorted(set(names) - objects.keys())
        if unknown:
            raise ValueError(f"per_rank names {', '.join(unknown)}, and there is no such object")
        for name, item in objects.items():
            if not isinstance(item, Stateful):
                raise TypeError(
                    f"{name} cannot be tracked: it has no state_dict and load_state_dict"
                )
        self._objects = {n: unwrap(o) for n, o in objects.items() if isinstance(o, Stateful)}
        self._replicated = {
            id(parameter) for item in objects.values() for parameter in _replicated(item)
        }
        every = set(objects) if per_rank else set()
        self._each = every if isinstance(names, bool) else set(names)
        self._each |= {name for name, item in self._objects.items() if _is_apart(item, apart)}
        self._models = {
            name: _ModelHolders(name, item, objects[name], self._replicated)
            for name, item in self._objects.items()
            if isinstance(item, nn.Module)
        }

    def state(self) -> dict[str, Any]:
        """The state of all of them, as it is now; its tensors are the live ones."""
        return {name: item.state_dict() for name, item in self._objects.items()}

    def check(self) -> None:
        """Find out now, rather than at the first resume, whether what is tracked takes its state back.

        Raises:
            Unstorable: an object does not; names it.
        """
        for name, item in self._objects.items():
            if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(item).__mro__):
                raise UnserializableState(
                    f"{name} is a ZeroRedundancyOptimizer, whose state no rank has whole: "
                    "use another optimizer, or shard the model with run.wrap(model, shard=True)"
                )
            for key, tensor in item.named_buffers() if isinstance(item, nn.Module) else ():
                if is_expanded(tensor):
                    raise UnserializableState(
                        f"{name}.{key} is an expanded tensor, into which nothing can be loaded: register a clone() of it"
                    )

    def encode(self, *, live: bool = False) -> tuple[dict[str, Json], Encoder]:
        """Encode the state as it is now: a tree for each object by its name, and the encoder with all tensors.

        `live`: with the parameters themselves, where `state_dict` returns other tensors over the same memory.

        Raises:
            Unstorable: a part of the state is of a kind that no checkpoint can hold.
        """
        encoder = Encoder()
        trees: dict[str, Json] = {}
        for name, item in self._objects.items():
            encoder.holder_of = self.holder_of(name)
            if live and isinstance(item, nn.Module):
                state = item.state_dict(keep_vars=True)
            else:
                state = item.state_dict()
            before = len(encoder.holders)
            trees[name] = encoder.encode(state, name)
            if self.keeping[name] is Owner.EACH:
                _refuse_shards(dict(islice(encoder.holders.items(), before, None)), name)
        return trees, encoder

    def homes(self) -> DestinationTensors:
        """Where the tensors of a checkpoint belong."""
        # The parameters themselves: what is copied onto itself then costs nothing.
        _, encoder = self.encode(live=True)
        parameters = {
            f"{name}.state[{number}]": parameter
            for name, item in self._objects.items()
            if isinstance(item, Optimizer)
            for number, parameter in enumerate(p for g in item.param_groups for p in g["params"])
        }
        own = frozenset(n for n, holder in encoder.holders.items() if holder is Owner.EACH)
        return DestinationTensors(encoder.tensors, parameters, own, frozenset(self._each))

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
            Mismatch: it is the state of other things, or one of them does not take it.
        """
        if state.keys() != self._objects.keys():
            raise StateMismatch(
                f"the checkpoint holds {_listed(state)}, and the script tracks {_listed(self._objects)}: "
                "track the same, or start with a new store"
            )
        for name in state:
            try:
                self.load_some({name: state[name]})
            except (RuntimeError, ValueError, KeyError) as error:
                said = " ".join(str(error).split())
                raise StateMismatch(
                    f"{name} does not take the state that was saved ({said}): build {name} as it was then, or start with a new store"
                ) from error

    def holder_of(self, name: str) -> Callable[[str], Owner]:
        """A function that returns the holder of the tensor at a path, for the object tracked as `name`.

        All ranks hold what DDP keeps the same: parameters, and what an optimizer made of them. Each rank has its own buffers of
        a model that DDP or FSDP2 wrapped, as it updates them from its own data.
        """
        item, keeping = self._objects[name], self.keeping[name]
        if keeping is not Owner.ALIKE:
            return lambda _: keeping
        if name in self._models:
            return self._models[name].__getitem__
        if isinstance(item, Optimizer) and self._is_replicated(item):
            kept = f"{name}.state["
            return lambda path: Owner.ALL if path.startswith(kept) else Owner.ALIKE
        return lambda _: Owner.ALIKE

    @property
    def keeping(self) -> dict[str, Owner]:
        """The holder of each object as a whole: of some tensors of those that all ranks have, there is another one."""
        return {
            name: Owner.EACH
            if name in self._each
            else Owner.FIRST
            if isinstance(item, OfFirst)
            else Owner.ALIKE
            for name, item in self._objects.items()
        }

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


class _ModelHolders(dict[str, Owner]):
    """The holder of each tensor of a model, by its path. The model is searched again for a path that is new."""

    def __init__(
        self, name: str, model: nn.Module, tracked: object, replicated: Collection[int]
    ) -> None:
        """`tracked`: the model as the script wrapped it. `replicated`: ids of the parameters that DDP keeps the same."""
        super().__init__()
        self._name, self._model, self._tracked = name, model, tracked
        self._replicated = replicated

    def __missing__(self, path: str) -> Owner:
        for key, parameter in self._model.named_parameters(remove_duplicate=False):
            is_kept = id(parameter) in self._replicated
            self[f"{self._name}.{key}"] = Owner.ALL if is_kept else Owner.ALIKE
        wrapped = {id(buffer) for buffer in _own_buffers(self._tracked)}
        for key, buffer in self._model.named_buffers(remove_duplicate=False):
            self[f"{self._name}.{key}"] = Owner.EACH if id(buffer) in wrapped else Owner.ALIKE
        return self.setdefault(path, Owner.ALIKE)


def _refuse_shards(holders: Mapping[str, Owner], name: str) -> None:
    """Raise `Unstorable` if ranks share a tensor of an object of which each rank has its own."""
    for path, holder in holders.items():
        if holder is Owner.SHARDS:
            raise UnserializableState(
                f"{path} is a DTensor of which each rank holds a part, and {name} is kept for each rank: "
                f"track {name} without per_rank, and wrap the model without gradients_agree=False"
            )


def _replicated(item: object) -> Iterator[nn.Parameter]:
    """The parameters that DDP keeps the same on all ranks, also where it was compiled or is part of a larger model."""
    for module in item.modules() if isinstance(item, nn.Module) else ():
        if isinstance(module, DistributedDataParallel):
            ignored = module.parameters_to_ignore
            yield from (p for n, p in module.module.named_parameters() if n not in ignored)


def _own_buffers(item: object) -> Iterator[Tensor]:
    """The buffers of models that DDP or FSDP2 wrapped."""
    for module in item.modules() if isinstance(item, nn.Module) else ():
        if isinstance(module, DistributedDataParallel) or is_sharded(module):
            yield from module.buffers()


def _is_apart(item: object, apart: Collection[nn.Module]) -> bool:
    """Whether an object is a model that differs between ranks, or an optimizer of such a model."""
    if isinstance(item, Optimizer):
        parameters = {id(p) for model in apart for p in model.parameters()}
        return any(id(p) in parameters for group in item.param_groups for p in group["params"])
    return any(item is unwrap(model) for model in apart)


def unwrap(item: Stateful) -> Stateful:
    """The object inside DDP and `torch.compile`, which put a prefix before every name."""
    if isinstance(item, DistributedDataParallel):
        return unwrap(item.module)
    inner = getattr(item, "_orig_mod", None)
    return unwrap(inner) if isinstance(inner, nn.Module) else item


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "nothing"
