"""The state that a new rank receives: what all ranks share, and what the lost one had alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import Any, Final

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from holdfast_worker.checkpoint.state_dict import InlineEncoder, decode
from holdfast_worker.checkpoint.stateful import TrackedState, ddp_models
from holdfast_worker.data.resumable_loader import Position
from holdfast_worker.distributed.recoverable_group import RecoverableGroup
from holdfast_worker.distributed.recovery_plan import Place
from holdfast_worker.distributed.tensor_layout import Owner
from holdfast_worker.protocol.reports import Json
from holdfast_worker.recovery.cached_encoder import CachedEncoder, dump
from holdfast_worker.recovery.replication import MAX_OWN_BYTES

HAS_STEPPED: Final = "an optimizer had stepped within the step"

SHARDED: Final = "the model is sharded, so that no other rank has the part of a lost one"

OTHER_GROUP: Final = (
    "a model sums its gradients in a process group of the script: wrap it with run.wrap()"
)

CONSTANT: Final = ("dawn", "deal")
"""Fields of a position that are the same objects during a pass over the data, and have most of its bytes."""


class RunState:
    """Captures the state of a rank, and loads it in a new one."""

    def __init__(
        self, tracked: TrackedState, group: RecoverableGroup, objects: Iterable[object] = ()
    ) -> None:
        """`objects`: the tracked ones with their wrappers, such as DDP."""
        self._tracked = tracked
        self._group = group
        self._at_boundary: dict[str, Any] = {}
        """States of objects other than models and optimizers, as a step may change them."""
        self._at_next_boundary: dict[str, Any] = {}
        group.on_boundary = self._keep_boundary
        self._encoder = CachedEncoder()
        self._constants: dict[str, tuple[object, str]] = {}
        """Constant fields of the position, with their JSON."""
        _, encoder = tracked.encode()
        self._own_objects = [n for n, owner in tracked.owners.items() if owner is Owner.PER_RANK]
        own = {n: t for n, t in encoder.tensors.items() if encoder.owners[n] is Owner.PER_RANK}
        prefixes = tuple(f"{name}{sign}" for name in self._own_objects for sign in ".[")
        self._own_buffers = {n: t for n, t in own.items() if not n.startswith(prefixes)}
        size = sum(t.numel() * t.element_size() for t in own.values())
        obstacles = {
            SHARDED: Owner.SHARDED in encoder.owners.values(),
            OTHER_GROUP: any(
                ddp.process_group is not group for item in objects for ddp in ddp_models(item)
            ),
            f"each rank has {size:,} bytes of its own, which is too much to copy in each step": (
                size > MAX_OWN_BYTES
            ),
        }
        self.obstacle = next((reason for reason, is_so in obstacles.items() if is_so), "")
        """Why a lost rank can never be replaced; empty if it can."""
        self.before_optimizer: Callable[[], None] = lambda: None
        """Called before each step of an optimizer."""
        register_optimizer_step_pre_hook(self._begin_update)

    def enter_boundary(self) -> None:
        """Copy what a step may change before the parameters, for the next boundary."""
        self._at_next_boundary = {
            name: deepcopy(item.state_dict())
            for name, item in self._tracked.objects.items()
            if not isinstance(item, nn.Module | Optimizer) and name not in self._own_objects
        }

    def why_not(self) -> str:
        """Why a new rank cannot start from this rank's state now; empty if it can."""
        has_changed = self._group.place is Place.STEP and self._group.has_updated
        return self.obstacle or (HAS_STEPPED if has_changed else "")

    def capture(self) -> tuple[Json, Sequence[Tensor]]:
        """The state as of the last boundary: trees and names of tensors, and the tensors."""
        trees, encoder = self._tracked.encode(states=self._at_boundary)
        names = list(encoder.tensors)
        tree: dict[str, Json] = {"trees": dict(trees), "names": list[Json](names)}
        return tree, [encoder.tensors[n].detach() for n in names]

    def capture_own(self, position: Position) -> bytes:
        """The state of this rank alone."""
        constants = [self._encode_constant(name, getattr(position, name)) for name in CONSTANT]
        rest = {
            each.name: getattr(position, each.name)
            for each in fields(position)
            if each.name not in {*CONSTANT, "move"}
        }
        buffers = {name: tensor.detach() for name, tensor in self._own_buffers.items()}
        objects = {name: self._tracked.objects[name].state_dict() for name in self._own_objects}
        changing = self._encoder.encode([rest, buffers, objects], "own")
        return f"[{changing},{','.join(constants)}]".encode()

    def load(self, tree: Mapping[str, Any], tensors: Sequence[Tensor], own: bytes) -> Position:
        """Load the state that a survivor captured and the state of a lost rank; return its position."""
        (rest, buffers, objects), *constants = json.loads(own)
        named = dict(zip(tree["names"], tensors, strict=True))
        named |= {name: decode(raw, {}) for name, raw in buffers.items()}
        trees = {**tree["trees"], **objects}
        self._tracked.load({name: decode(trees[name], named) for name in self._tracked.names})
        rest |= dict(zip(CONSTANT, constants, strict=True))
        return Position(**{name: decode(raw, {}) for name, raw in rest.items()})

    def _encode_constant(self, name: str, value: object) -> str:
        known = self._constants.get(name)
        if known is None or known[0] is not value:
            known = value, dump(InlineEncoder().encode(value, f"own.{name}"))
            self._constants[name] = known
        return known[1]

    def _keep_boundary(self) -> None:
        self._at_boundary = self._at_next_boundary

    def _begin_update(self, *_given: object) -> None:
        self.before_optimizer()
        # A new rank must not receive parameters of which some have changed.
        self._group.begin_update()
