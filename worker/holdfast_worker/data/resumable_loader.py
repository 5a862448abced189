"""The resumable loader: batches of a loader over all passes, from an exact position.

A loader draws its order when a pass begins, from generators that training also uses. The position therefore holds the generator
states at the start of the pass, the number of batches consumed since, and the current states. A resume restores the states at the
start, begins the pass again, skips the consumed batches and restores the current states.

The position also holds the sampling scheme (`deal`). If the loader or the number of ranks has changed, the rest of the pass is
read in its original order, as far as that order is known (`resume_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast_worker import rng
from holdfast_worker.console import log_info
from holdfast_worker.data import loader_introspection
from holdfast_worker.data.loader_introspection import ElasticDataset
from holdfast_worker.data.position import Position, reshard
from holdfast_worker.data.resume_plan import (
    FinishPass,
    LoaderChanged,
    RestoreLoaderState,
    ResumeAction,
    SkipConsumed,
    StartPass,
    plan_resume,
)
from holdfast_worker.data.sampling import SamplingScheme

__all__ = ["LoaderChanged", "Position", "ResumableLoader", "reshard"]

B = TypeVar("B")

CONTINUES_NOT_MAPPED: Final = "continues=True requires an iterable data set: a sampler begins each pass by itself, so omit continues"
CONTINUES_NOT_ALONE: Final = "continues=True with num_workers requires persistent_workers=True: without it, each pass reads a new copy of the data set"


class ResumableLoader(Generic[B]):
    """Batches without end.

    Only batches that a step consumed count, and generators are not used between two of them.
    """

    def __init__(
        self,
        loader: Iterable[B],
        start: Position | None = None,
        on_skip: Callable[[], None] = lambda: None,
        *,
        continues: bool = False,
        logs: bool = True,
    ) -> None:
        """Begin at `start`, or with the current generators.

        `on_skip` is called for each skipped batch, as a sign of life.

        `continues`: each pass begins where the last one ended. `logs`: log warnings, on one rank only.

        Raises:
            ValueError: `continues` is impossible with this loader.
        """
        self._loader = loader
        self._on_skip = on_skip
        self._start = start
        self._passes = start.passes if start else 0
        self._consumed = 0
        self._pass_start: rng.RngStates = {}
        self._scheme: SamplingScheme | None = None
        """None: no pass has begun here."""
        self._deal: rng.RngStates = {}
        """The scheme as a tree. It is the same object during a pass, which makes it cheap to compare."""
        self._data_at_pass_start: Any = None
        self._data_rng: rng.RngStream | None = None
        self._parts = _parts(loader)
        self._generators = _generators(self._parts)
        self._stateful = loader_introspection.stateful_part(loader)
        self._elastic: ElasticDataset | None = None
        if isinstance(loader, DataLoader):
            is_iterable = isinstance(loader.dataset, IterableDataset)
            is_in_process = loader.num_workers == 0
            if is_iterable and is_in_process and isinstance(loader.dataset, ElasticDataset):
                self._elastic = loader.dataset
        else:
            is_iterable = is_in_process = True
        # Data generated in this process gets separate generators. Otherwise its draws would depend on what training
        # drew in between, and a replay would not generate the same data.
        self._has_data_rng = is_iterable and is_in_process
        self._skips_unread = is_in_process and not is_iterable
        # Workers that end with a pass lose what they have read.
        self._can_continue = is_iterable and (
            is_in_process or bool(getattr(loader, "persistent_workers", False))
        )
        if continues and not self._can_continue:
            raise ValueError(CONTINUES_NOT_ALONE if is_iterable else CONTINUES_NOT_MAPPED)
        self._has_state = self._stateful is not None or self._elastic is not None
        self._continues = continues and not self._has_state
        """Whether a replay begins with the first pass, as data without its own state requires."""
        self._first_pass = self._passes
        """The first pass over the current data set object."""
        self._earlier = 0
        """Batches from that pass up to the current one."""
        self._logs = logs
        self._warn_of_untracked_state()

    @property
    def position(self) -> Position:
        """The current position. Valid between a step and the next batch."""
        if self._scheme is None and self._start:
            assert self._start.move is None, (
                "no save between a world size change and the first batch"
            )
            return self._start
        present = self._capture()
        if self._scheme is None:
            return Position(self._passes, 0, present, present)
        position = Position(
            self._passes, self._consumed, self._pass_start, present, deal=self._deal
        )
        if self._continues:
            return replace(position, first_pass=self._first_pass, earlier=self._earlier)
        if self._stateful is not None:
            apart = self._data_rng.inner_states if self._data_rng else None
            return replace(position, loader=self._stateful.state_dict(), apart=apart)
        if self._elastic is not None:
            data = {"at_dawn": self._data_at_pass_start, "now": self._elastic.state_dict()}
            return replace(position, data=data)
        return position

    @property
    def known_position(self) -> Position | None:
        """The current position; None between a change of the world size and the first batch."""
        is_redistributed = self._scheme is None and self._start is not None and self._start.move
        return None if is_redistributed else self.position

    def skip_all(self) -> None:
        """Restore the generators of the start position, because no batch will be consumed."""
        if self._start:
            self._restore(self._start.present)

    def __iter__(self) -> Iterator[B]:
        """The remaining batches.

        Raises:
            LoaderChanged: the loader cannot reach the start position.
            ValueError: a whole pass returned no batch.
        """
        while True:
            with ExitStack() as exit_stack:
                is_whole = self._start is None
                batches = self._begin_pass(exit_stack)
                while True:
                    with self._data_rng or nullcontext():
                        batch = next(batches, _END)
                    if isinstance(batch, _End):
                        break
                    self._consumed += 1
                    yield batch
            if self._consumed == 0 and is_whole:
                raise ValueError("the loader returned no batch in a whole pass over the data")
            self._end_pass(self._consumed)

    def _begin_pass(self, exit_stack: ExitStack) -> Iterator[B]:
        """Begin or resume a pass; its batches are consumed with the data generators."""
        start, self._start = self._start, None
        self._set_epoch()
        if start is None:
            is_open = self._continues and self._scheme is not None
            return self._iterate() if is_open else self._open_pass(exit_stack)
        match self._plan_resume(start):
            case StartPass(passes):
                self._passes = self._first_pass = passes
                self._set_epoch()
                self._load_former_data(start)
                self._restore(start.present)
                return self._open_pass(exit_stack)
            case FinishPass(deal):
                self._restore(start.present)
                batches = self._open_pass(exit_stack, deal)
            case SkipConsumed():
                self._load_data(start)
                self._restore(start.dawn)
                if self._continues:
                    batches = self._skip_passes(start, exit_stack)
                else:
                    batches = self._open_pass(exit_stack, _inherited_scheme(start))
                self._skip(batches, start.taken)
            case RestoreLoaderState():
                assert self._stateful is not None, "the plan requires a stateful loader"
                self._stateful.load_state_dict(start.loader)
                self._restore(start.dawn)
                batches = self._open_pass(exit_stack, _inherited_scheme(start))
                self._consumed = start.taken
                if self._data_rng and start.apart:
                    self._data_rng.inner_states = start.apart
        # Skipping advanced the generators; restore the states of the position.
        self._restore(start.present)
        return batches

    def _plan_resume(self, start: Position) -> ResumeAction:
        """Plan how to resume; one rank logs the message.

        Raises:
            LoaderChanged: the loader cannot resume.
        """
        now = self._inspect()
        plan = plan_resume(start, now)
        self._warn(plan.message)
        self._check_stream(start, plan.action)
        if isinstance(plan.action, SkipConsumed | RestoreLoaderState):
            before, here = len(start.dawn["own"]), len(self._generators)
            if before != here:
                raise LoaderChanged(
                    f"at the checkpoint the loader and its samplers had {before} generators, "
                    f"now they have {here}: revert this, or use a new store"
                )
        return plan.action

    def _open_pass(
        self, exit_stack: ExitStack, inherited: SamplingScheme | None = None
    ) -> Iterator[B]:
        """Begin a pass now, or the rest of an `inherited` one."""
        self._pass_start = self._capture()
        self._scheme = inherited or self._inspect()
        self._deal = self._scheme.to_dict()
        if inherited:
            exit_stack.enter_context(
                loader_introspection.apply_sampler(self._loader, inherited.remainder())
            )
        self._data_at_pass_start = (
            None if self._elastic is None else deepcopy(self._elastic.state_dict())
        )
        self._data_rng = rng.RngStream() if self._has_data_rng else None
        self._draw_persistent_worker_seed()
        return self._iterate()

    def _iterate(self) -> Iterator[B]:
        with self._data_rng or nullcontext():
            return iter(self._loader)

    def _end_pass(self, taken: int) -> None:
        """Count a finished pass of `taken` batches."""
        self._passes += 1
        self._earlier += taken
        self._consumed = 0

    def _check_stream(self, start: Position, action: ResumeAction) -> None:
        """Warn if a later pass of a stream restarts the data set from its beginning.

        Raises:
            LoaderChanged: `continues` differs from the checkpoint.
        """
        name = getattr(self._loader, "dataset", self._loader).__class__.__name__
        if isinstance(action, SkipConsumed) and start.passes:
            if self._continues and start.first_pass is None:
                raise LoaderChanged(
                    f"the checkpoint was taken in pass {start.passes + 1} without continues=True, so it does not record how much of "
                    f"{name} was read: omit continues, or use a new store"
                )
            if not self._continues and start.first_pass is not None:
                raise LoaderChanged(
                    "the checkpoint was taken with continues=True: revert this, or use a new store"
                )
        passes = action.passes if isinstance(action, StartPass) and start.move else start.passes
        is_stream = isinstance(getattr(self._loader, "dataset", None), IterableDataset)
        if not (passes and is_stream and self._can_continue) or self._has_state:
            return
        if self._continues and isinstance(action, StartPass):
            self._warn(f"{name} continues over all passes, and restarts with its first sample")
        elif not self._continues:
            self._warn(
                f"pass {passes + 1} restarts {name} from its beginning: if one stream continues over its passes, "
                "use run.steps(..., continues=True), or samples are repeated"
            )

    def _skip_passes(self, start: Position, exit_stack: ExitStack) -> Iterator[B]:
        """Replay all earlier passes of the data set, then return the batches of the pass of `start`.

        Raises:
            LoaderChanged: the number of batches in these passes has changed.
        """
        self._passes = self._first_pass = start.first_pass or 0
        self._set_epoch()
        batches = self._open_pass(exit_stack)
        while self._passes < start.passes:
            taken = 0
            with self._data_rng or nullcontext():
                for _ in batches:
                    self._on_skip()
                    taken += 1
            self._end_pass(taken)
            self._set_epoch()
            batches = self._iterate()
        if self._earlier != start.earlier:
            raise LoaderChanged(
                f"the passes before the checkpoint had {start.earlier} batches, now they have {self._earlier}: did the data "
                "or the batch size change?"
            )
        return batches

    def _skip(self, batches: Iterator[B], taken: int) -> None:
        # Without workers, skipped batches need not be read: torch's own method (since 1.2) advances the sampler. A loader
        # without it is replayed. With workers, everything is replayed, because their generators must advance.
        next_index = getattr(batches, "_next_index", None) if self._skips_unread else None
        with self._data_rng or nullcontext():
            for _ in range(taken):
                self._on_skip()
                try:
                    if next_index:
                        next_index()
                    else:
                        next(batches)
                except StopIteration:
                    raise LoaderChanged(
                        f"the checkpoint was taken after batch {taken} of a pass, but the loader has fewer batches: "
                        "did the data or the batch size change?"
                    ) from None
        self._consumed = taken

    def _set_epoch(self) -> None:
        """Set the samplers' epoch, so that `DistributedSampler` shuffles each pass differently."""
        for part in self._parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._passes)

    def _inspect(self) -> SamplingScheme:
        """The sampling scheme of a pass that begins now."""
        return loader_introspection.inspect_loader(self._loader, self._generators, self._capture())

    def _draw_persistent_worker_seed(self) -> None:
        """Draw the worker seed, which a loader with existing persistent workers does not draw.

        A resume starts new workers. Without this draw, later passes would have a different order after a resume.
        """
        loader = self._loader
        if isinstance(loader, DataLoader) and self._stateful is None:
            is_alive = loader.persistent_workers and getattr(loader, "_iterator", None) is not None
            if is_alive:
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _load_data(self, start: Position) -> None:
        """Restore an elastic data set to the start of the pass."""
        if self._elastic is not None and start.data:
            self._elastic.load_state_dict(start.data["at_dawn"])

    def _load_former_data(self, start: Position) -> None:
        """Restore an elastic data set from the positions of all former ranks."""
        move = start.move
        if self._elastic is not None and move and all(data is not None for data in move.data):
            self._elastic.load_state_dicts(move.data)

    def _capture(self) -> rng.RngStates:
        own = [generator.get_state() for generator in self._generators]
        return {"global": rng.capture(), "own": own}

    def _restore(self, states: rng.RngStates) -> None:
        rng.restore(states["global"])
        generators = self._generators
        if len(generators) == len(states["own"]):
            # A changed loader may have different generators; they stay as the script made them.
            for generator, state in zip(generators, states["own"], strict=True):
                generator.set_state(state)

    def _warn_of_untracked_state(self) -> None:
        # In a continuing stream, workers replay everything and draw the same numbers.
        if getattr(self._loader, "persistent_workers", False) and not self._continues:
            self._warn(
                "persistent_workers keep their random state across passes, outside of any checkpoint: "
                "after a resume the order of the data is exact, but random augmentation in the workers is not"
            )
        if getattr(self._loader, "num_workers", 0) and not getattr(self._loader, "in_order", True):
            self._warn(
                "in_order=False returns batches in the order of completion, so the consumed ones are unknown: "
                "after a resume some batches are repeated and some are lost"
            )

    def _warn(self, message: str) -> None:
        if message and self._logs:
            log_info(message)


def _parts(loader: object) -> list[Any]:
    """The loader and its samplers, each once."""
    parts = [loader, getattr(loader, "dataset", None), getattr(loader, "batch_sampler", None)]
    for part in parts:
        # Samplers may be nested; the loop also visits the ones it appends.
        inner = getattr(part, "sampler", None)
        if not any(inner is known for known in parts):
            parts.append(inner)
    return [part for part in parts if part is not None]


def _generators(parts: list[Any]) -> list[torch.Generator]:
    """The generators of the loader and its samplers, each once."""
    found = (getattr(part, "generator", None) for part in parts)
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _inherited_scheme(start: Position) -> SamplingScheme | None:
    """The sampling scheme of an inherited pass; None if this loader began the pass."""
    deal = SamplingScheme.parse(start.deal) if start.deal else None
    return deal if deal and deal.is_inherited else None


class _End:
    """Marks the end of a pass, because None may be a batch."""


_END = _End()
