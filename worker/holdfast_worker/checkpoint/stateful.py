"""The objects that a script tracks: anything with a `state_dict`, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from holdfast_worker.checkpoint.read_plan import DestinationTensors
from holdfast_worker.checkpoint.state_dict import Encoder, UnserializableState, is_expanded
from holdfast_worker.distributed.sharding import is_sharded, local_memory
from holdfast_worker.distributed.tensor_layout import Owner
from holdfast_worker.protocol.reports import Json


@runtime_checkable
class Stateful(Protocol):
    """An object that can return and load its state."""

    def state_dict(self) -> Any:
        """Return the state as a tree of plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Load a state that `state_dict` returned."""


class RankZeroState:
    """Base class of objects whose state rank 0 holds for all ranks."""


class StateMismatch(Exception):
    """The checkpoint and the script hold different state."""


class TrackedState:
    """Named objects whose state is checkpointed."""

    def __init__(
        self,
        objects: Mapping[str, object],
        per_rank: Collection[str] | bool = False,
        independent: Collection[nn.Module] = (),
    ) -> None:
        """Track `objects` without their wrappers, so that names do not depend on the wrapping.

        `per_rank`: names of the objects whose state differs by rank; True: all objects. The models in `independent`
        and their optimizers are always per-rank.

        Raises:
            TypeError: an object has no state.
            ValueError: `per_rank` contains an unknown name.
        """
        names = {per_rank} if isinstance(per_rank, str) else per_rank
        unknown = () if isinstance(names, bool) else sorted(set(names) - objects.keys())
        if unknown:
            raise ValueError(f"per_rank names {', '.join(unknown)}, which is not tracked")
        for name, item in objects.items():
            if not isinstance(item, Stateful):
                raise TypeError(
                    f"{name} cannot be tracked: it has no state_dict() and load_state_dict()"
                )
        self._objects = {n: unwrap(o) for n, o in objects.items() if isinstance(o, Stateful)}
        self._replicated = {
            id(parameter) for item in objects.values() for parameter in _replicated(item)
        }
        every = set(objects) if per_rank else set()
        self._per_rank = every if isinstance(names, bool) else set(names)
        self._per_rank |= {
            name
            for name, item in self._objects.items()
            if _differs_between_ranks(item, independent)
        }
        self._models = {
            name: _ModelOwners(name, item, objects[name], self._replicated)
            for name, item in self._objects.items()
            if isinstance(item, nn.Module)
        }

    def state(self) -> dict[str, Any]:
        """The current state of all objects, with the live tensors."""
        return {name: item.state_dict() for name, item in self._objects.items()}

    def check(self) -> None:
        """Check now, and not at the first resume, that the tracked objects can load their state.

        Raises:
            UnserializableState: an object cannot; the message names it.
        """
        for name, item in self._objects.items():
            if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(item).__mro__):
                raise UnserializableState(
                    f"{name} is a ZeroRedundancyOptimizer, whose complete state is on no rank: "
                    "use another optimizer, or shard the model with run.wrap(model, shard=True)"
                )
            for key, tensor in item.named_buffers() if isinstance(item, nn.Module) else ():
                if is_expanded(tensor):
                    raise UnserializableState(
                        f"{name}.{key} is an expanded tensor, which cannot be loaded in place: register a clone() of it"
                    )

    def encode(
        self, *, live: bool = False, states: Mapping[str, Any] = {}
    ) -> tuple[dict[str, Json], Encoder]:
        """Encode the current state: one tree per object by name, and the encoder with all tensors.

        `live`: collect the parameters themselves instead of the detached tensors that `state_dict` returns. `states`: encode
        these states of some objects instead of the current ones.

        Raises:
            UnserializableState: part of the state cannot be checkpointed.
        """
        encoder = Encoder()
        trees: dict[str, Json] = {}
        for name, item in self._objects.items():
            encoder.owner_of = self.owner_of(name)
            if name in states:
                state = states[name]
            elif live and isinstance(item, nn.Module):
                state = item.state_dict(keep_vars=True)
            else:
                state = item.state_dict()
            before = len(encoder.owners)
            trees[name] = encoder.encode(state, name)
            if self.owners[name] is Owner.PER_RANK:
                _refuse_shards(dict(islice(encoder.owners.items(), before, None)), name)
        return trees, encoder

    def destinations(self) -> DestinationTensors:
        """The live tensors into which a checkpoint is loaded."""
        # With the parameters themselves, loading copies a tensor onto itself, which is free.
        _, encoder = self.encode(live=True)
        parameters = {
            f"{name}.state[{number}]": parameter
            for name, item in self._objects.items()
            if isinstance(item, Optimizer)
            for number, parameter in enumerate(p for g in item.param_groups for p in g["params"])
        }
        own = frozenset(n for n, holder in encoder.owners.items() if holder is Owner.PER_RANK)
        return DestinationTensors(encoder.tensors, parameters, own, frozenset(self._per_rank))

    @property
    def objects(self) -> Mapping[str, Stateful]:
        """The tracked objects by name, without their wrappers."""
        return self._objects

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tracked objects."""
        return tuple(self._objects)

    def load_partial(self, state: Mapping[str, Any]) -> None:
        """Load the state of some of the objects."""
        for name, part in state.items():
            self._objects[name].load_state_dict(part)

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of all objects.

        Raises:
            StateMismatch: the names differ, or an object rejects its state.
        """
        if state.keys() != self._objects.keys():
            raise StateMismatch(
                f"the checkpoint holds {_join_names(state)}, but the script tracks {_join_names(self._objects)}: "
                "track the same objects, or use a new store"
            )
        for name in state:
            try:
                self.load_partial({name: state[name]})
            except (RuntimeError, ValueError, KeyError) as error:
                detail = " ".join(str(error).split())
                raise StateMismatch(
                    f"{name} cannot load the saved state ({detail}): build {name} as it was when saved, or use a new store"
                ) from error

    def owner_of(self, name: str) -> Callable[[str], Owner]:
        """Return a function from a tensor's path to its owner, for the object tracked as `name`.

        Parameters that DDP keeps equal, and their optimizer state, are replicated. Buffers of a model wrapped by DDP or FSDP2
        are per-rank, because each rank updates them from its own data.
        """
        item, owner = self._objects[name], self.owners[name]
        if owner is not Owner.VERIFIED_REPLICA:
            return lambda _: owner
        if name in self._models:
            return self._models[name].__getitem__
        if isinstance(item, Optimizer) and self._is_replicated(item):
            kept = f"{name}.state["
            return lambda path: (
                Owner.REPLICATED if path.startswith(kept) else Owner.VERIFIED_REPLICA
            )
        return lambda _: Owner.VERIFIED_REPLICA

    @property
    def per_rank(self) -> list[str]:
        """Names of the objects with one state for each rank, which only as many ranks load."""
        return sorted(self._per_rank)

    @property
    def owners(self) -> dict[str, Owner]:
        """The owner of each object; single tensors of a shared object may have another one."""
        return {
            name: Owner.PER_RANK
            if name in self._per_rank
            else Owner.RANK_ZERO
            if isinstance(item, RankZeroState)
            else Owner.VERIFIED_REPLICA
            for name, item in self._objects.items()
        }

    def optimizer_owned(self) -> frozenset[int]:
        """Addresses of tensors that change only in `optimizer.step()`.

        Model buffers are excluded: the forward pass changes them.
        """
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
        return frozenset(local_memory(tensor).data_ptr() for tensor in (*kept, *parameters))

    def _is_replicated(self, optimizer: Optimizer) -> bool:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        return all(id(parameter) in self._replicated for parameter in parameters)


class _ModelOwners(dict[str, Owner]):
    """Owners of a model's tensors by path; an unknown path triggers a new scan of the model."""

    def __init__(
        self, name: str, model: nn.Module, tracked: object, replicated: Collection[int]
    ) -> None:
        """`tracked`: the model with its wrappers.

        `replicated`: ids of the parameters that DDP keeps equal.
        """
        super().__init__()
        self._name, self._model, self._tracked = name, model, tracked
        self._replicated = replicated

    def __missing__(self, path: str) -> Owner:
        for key, parameter in self._model.named_parameters(remove_duplicate=False):
            is_kept = id(parameter) in self._replicated
            self[f"{self._name}.{key}"] = Owner.REPLICATED if is_kept else Owner.VERIFIED_REPLICA
        wrapped = {id(buffer) for buffer in _own_buffers(self._tracked)}
        for key, buffer in self._model.named_buffers(remove_duplicate=False):
            self[f"{self._name}.{key}"] = (
                Owner.PER_RANK if id(buffer) in wrapped else Owner.VERIFIED_REPLICA
            )
        return self.setdefault(path, Owner.VERIFIED_REPLICA)


def _refuse_shards(holders: Mapping[str, Owner], name: str) -> None:
    """Raise `UnserializableState` if a per-rank object contains a sharded tensor."""
    for path, holder in holders.items():
        if holder is Owner.SHARDED:
            raise UnserializableState(
                f"{path} is a DTensor that is sharded over ranks, but {name} is tracked per rank: "
                f"track {name} without per_rank, and wrap the model without gradients_agree=False"
            )


def ddp_models(item: object) -> Iterator[DistributedDataParallel]:
    """The models in an object that DDP wraps, also in compiled or nested ones."""
    for module in item.modules() if isinstance(item, nn.Module) else ():
        if isinstance(module, DistributedDataParallel):
            yield module


def _replicated(item: object) -> Iterator[nn.Parameter]:
    """The parameters that DDP keeps equal on all ranks."""
    for ddp in ddp_models(item):
        ignored = ddp.parameters_to_ignore
        yield from (p for n, p in ddp.module.named_parameters() if n not in ignored)


def _own_buffers(item: object) -> Iterator[Tensor]:
    """The buffers of models wrapped by DDP or FSDP2."""
    for module in item.modules() if isinstance(item, nn.Module) else ():
        if isinstance(module, DistributedDataParallel) or is_sharded(module):
            yield from module.buffers()


def _differs_between_ranks(item: object, independent: Collection[nn.Module]) -> bool:
    """Whether an object is a model in `independent` or an optimizer of one."""
    if isinstance(item, Optimizer):
        parameters = {id(p) for model in independent for p in model.parameters()}
        return any(id(p) in parameters for group in item.param_groups for p in group["params"])
    return any(item is unwrap(model) for model in independent)


def unwrap(item: Stateful) -> Stateful:
    """The object inside DDP and `torch.compile`, which prefix every name."""
    if isinstance(item, DistributedDataParallel):
        return unwrap(item.module)
    inner = getattr(item, "_orig_mod", None)
    return unwrap(inner) if isinstance(inner, nn.Module) else item


def _join_names(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "nothing"
