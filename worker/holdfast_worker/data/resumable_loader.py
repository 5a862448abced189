"""The feed: the batches of a loader, pass after pass over the data, from an exact position.

A loader draws its order when a pass begins, from generators that the training draws from too. So the position is
kept as the state of the generators at the dawn of the pass, the number of batches taken since, and the state now:
to go on, the dawn is put back, the pass begun again, the taken batches are skipped, and the present is put back.

What the loader is belongs to the position too (`deal`). If it is not the same any more, or if another number of ranks
goes on, the rest of the pass is given in the order that it had, as far as that is known (`onward`).
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
    Onward,
    RestoreLoaderState,
    SkipConsumed,
    StartPass,
    decide,
)
from holdfast_worker.data.sampling import SamplingScheme

__all__ = ["LoaderChanged", "Position", "ResumableLoader", "reshard"]

B = TypeVar("B")

CONTINUES_NOT_MAPPED: Final = "continues=True is for iterable data: a sampler begins each pass over other data by itself, so leave continues out"
CONTINUES_NOT_ALONE: Final = "continues=True with num_workers needs persistent_workers=True: without it, each pass is read from a new copy of the data set"


class ResumableLoader(Generic[B]):
    """Batches without end. Only what the steps consumed counts as taken, and nothing is drawn between two of them."""

    def __init__(
        self,
        loader: Iterable[B],
        start: Position | None = None,
        live: Callable[[], None] = lambda: None,
        *,
        continues: bool = False,
        tells: bool = True,
    ) -> None:
        """Begin at `start`, or where the generators are now. `live` is called for every batch that is skipped on the way.

        `continues`: each pass over the data begins where the last one ended. `tells`: print warnings, as one rank of all does.

        Raises:
            ValueError: the data cannot continue.
        """
        self._loader = loader
        self._live = live
        self._start = start
        self._passes = start.passes if start else 0
        self._taken = 0
        self._dawn: rng.States = {}
        self._deal: SamplingScheme | None = None
        """None: no pass was begun here."""
        self._data_at_dawn: Any = None
        self._apart: rng.Stream | None = None
        self._parts = _parts(loader)
        self._generators = _generators(self._parts)
        self._keeper = loader_introspection.stateful_part(loader)
        self._elastic: ElasticDataset | None = None
        if isinstance(loader, DataLoader):
            is_iterable = isinstance(loader.dataset, IterableDataset)
            is_in_process = loader.num_workers == 0
            if is_iterable and is_in_process and isinstance(loader.dataset, ElasticDataset):
                self._elastic = loader.dataset
        else:
            is_iterable = is_in_process = True
        # Data that is made up on the way, in this process, gets generators of its own. Otherwise what it draws would
        # depend on what the training drew in between, and skipping by replay would not make the same data again.
        self._draws_apart = is_iterable and is_in_process
        self._skips_unread = is_in_process and not is_iterable
        # Workers that end with their pass take what they have read along.
        self._can_continue = is_iterable and (
            is_in_process or bool(getattr(loader, "persistent_workers", False))
        )
        if continues and not self._can_continue:
            raise ValueError(CONTINUES_NOT_ALONE if is_iterable else CONTINUES_NOT_MAPPED)
        self._has_state = self._keeper is not None or self._elastic is not None
        self._continues = continues and not self._has_state
        """Whether a replay begins with the first pass. Data with a state of its own needs no replay."""
        self._first_pass = self._passes
        """The first pass of the data set that is read now."""
        self._earlier = 0
        """Batches of the passes between that one and this."""
        self._tells = tells
        self._warn_of_what_no_checkpoint_sees()

    @property
    def position(self) -> Position:
        """Where the feed is. Ask between a step and the next batch."""
        if self._deal is None and self._start:
            assert self._start.move is None, "nothing is saved between a move and the first batch"
            return self._start
        present = self._capture()
        if self._deal is None:
            return Position(self._passes, 0, present, present)
        position = Position(self._passes, self._taken, self._dawn, present, deal=self._deal.plain())
        if self._continues:
            return replace(position, first_pass=self._first_pass, earlier=self._earlier)
        if self._keeper is not None:
            apart = self._apart.inside if self._apart else None
            return replace(position, loader=self._keeper.state_dict(), apart=apart)
        if self._elastic is not None:
            data = {"at_dawn": self._data_at_dawn, "now": self._elastic.state_dict()}
            return replace(position, data=data)
        return position

    def skip_all(self) -> None:
        """Put the generators where they were at the start, as no batch will be taken."""
        if self._start:
            self._restore(self._start.present)

    def __iter__(self) -> Iterator[B]:
        """The batches from here on.

        Raises:
            LoaderChanged: the loader does not reach the position of the start.
            ValueError: a whole pass gave no batch.
        """
        while True:
            with ExitStack() as until_the_end:
                is_whole = self._start is None
                batches = self._begin_pass(until_the_end)
                while True:
                    with self._apart or nullcontext():
                        batch = next(batches, _END)
                    if isinstance(batch, _End):
                        break
                    self._taken += 1
                    yield batch
            if self._taken == 0 and is_whole:
                raise ValueError("the loader gave no batch in a whole pass over the data")
            self._end_pass(self._taken)

    def _begin_pass(self, until_the_end: ExitStack) -> Iterator[B]:
        """What is left of a pass; to be taken `apart`."""
        start, self._start = self._start, None
        self._tell_pass()
        if start is None:
            is_open = self._continues and self._deal is not None
            return self._iterate() if is_open else self._open(until_the_end)
        match self._choose(start):
            case StartPass(passes):
                self._passes = self._first_pass = passes
                self._tell_pass()
                self._hand_over_data(start)
                self._restore(start.present)
                return self._open(until_the_end)
            case FinishPass(deal):
                self._restore(start.present)
                batches = self._open(until_the_end, deal)
            case SkipConsumed():
                self._load_data(start)
                self._restore(start.dawn)
                if self._continues:
                    batches = self._skip_passes(start, until_the_end)
                else:
                    batches = self._open(until_the_end, _inherited(start))
                self._skip(batches, start.taken)
            case RestoreLoaderState():
                assert self._keeper is not None, "only then it is decided like this"
                self._keeper.load_state_dict(start.loader)
                self._restore(start.dawn)
                batches = self._open(until_the_end, _inherited(start))
                self._taken = start.taken
                if self._apart and start.apart:
                    self._apart.inside = start.apart
        # What was drawn to come here is not to be missing from what comes.
        self._restore(start.present)
        return batches

    def _choose(self, start: Position) -> Onward:
        """How to go on; what is to be said about it is said by one rank.

        Raises:
            LoaderChanged: there is no way.
        """
        now = self._read()
        plan = decide(start, now)
        self._warn(plan.words)
        self._check_stream(start, plan.onward)
        if isinstance(plan.onward, SkipConsumed | RestoreLoaderState):
            before, here = len(start.dawn["own"]), len(self._generators)
            if before != here:
                raise LoaderChanged(
                    f"at the checkpoint the loader and its samplers had {before} generators of their own, "
                    f"now they have {here}: put it back, or start with a new store"
                )
        return plan.onward

    def _open(
        self, until_the_end: ExitStack, inherited: SamplingScheme | None = None
    ) -> Iterator[B]:
        """The batches of a pass that begins here and now; of one that was `inherited`, what is left."""
        self._dawn = self._capture()
        self._deal = inherited or self._read()
        if inherited:
            until_the_end.enter_context(
                loader_introspection.apply_sampler(self._loader, inherited.rest())
            )
        self._data_at_dawn = None if self._elastic is None else deepcopy(self._elastic.state_dict())
        self._apart = rng.Stream() if self._draws_apart else None
        self._draw_for_workers_that_live_on()
        return self._iterate()

    def _iterate(self) -> Iterator[B]:
        with self._apart or nullcontext():
            return iter(self._loader)

    def _end_pass(self, taken: int) -> None:
        """Count a pass of so many batches."""
        self._passes += 1
        self._earlier += taken
        self._taken = 0

    def _check_stream(self, start: Position, onward: Onward) -> None:
        """Warn if a later pass of a stream is read from where a new data set begins.

        Raises:
            LoaderChanged: whether the data continues was declared differently at the checkpoint.
        """
        name = getattr(self._loader, "dataset", self._loader).__class__.__name__
        if isinstance(onward, SkipConsumed) and start.passes:
            if self._continues and start.first_pass is None:
                raise LoaderChanged(
                    f"the checkpoint was taken in pass {start.passes + 1} without continues=True, and does not say how much of "
                    f"{name} was read: leave continues out, or start with a new store"
                )
            if not self._continues and start.first_pass is not None:
                raise LoaderChanged(
                    "the checkpoint was taken with continues=True: put it back, or start with a new store"
                )
        passes = onward.passes if isinstance(onward, StartPass) and start.move else start.passes
        is_stream = isinstance(getattr(self._loader, "dataset", None), IterableDataset)
        if not (passes and is_stream and self._can_continue) or self._has_state:
            return
        if self._continues and isinstance(onward, StartPass):
            self._warn(f"{name} continues over all passes, and begins again with its first sample")
        elif not self._continues:
            self._warn(
                f"pass {passes + 1} over the data is read again from where a new {name} begins: if it continues one "
                "stream over its passes, use run.steps(..., continues=True), or its samples come twice"
            )

    def _skip_passes(self, start: Position, until_the_end: ExitStack) -> Iterator[B]:
        """The batches of the pass of `start`, after those of all earlier passes of this data set were read again.

        Raises:
            LoaderChanged: these passes have another number of batches now.
        """
        self._passes = self._first_pass = start.first_pass or 0
        self._tell_pass()
        batches = self._open(until_the_end)
        while self._passes < start.passes:
            taken = 0
            with self._apart or nullcontext():
                for _ in batches:
                    self._live()
                    taken += 1
            self._end_pass(taken)
            self._tell_pass()
            batches = self._iterate()
        if self._earlier != start.earlier:
            raise LoaderChanged(
                f"the passes before the checkpoint had {start.earlier} batches, and now they have {self._earlier}: did the data "
                "or the batch size change?"
            )
        return batches

    def _skip(self, batches: Iterator[B], taken: int) -> None:
        # What a loader without workers skips need not be read, only be counted off. The method is torch's own, since
        # 1.2; a loader without it is replayed. With workers all is replayed: their generators must get there too.
        next_index = getattr(batches, "_next_index", None) if self._skips_unread else None
        with self._apart or nullcontext():
            for _ in range(taken):
                self._live()
                try:
                    if next_index:
                        next_index()
                    else:
                        next(batches)
                except StopIteration:
                    raise LoaderChanged(
                        f"the checkpoint was taken after batch {taken} of a pass, and the loader has fewer: "
                        "did the data or the batch size change?"
                    ) from None
        self._taken = taken

    def _tell_pass(self) -> None:
        """Let samplers shuffle anew, as `DistributedSampler` asks for."""
        for part in self._parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._passes)

    def _read(self) -> SamplingScheme:
        """The deal of a pass that begins now, from what there is now."""
        return loader_introspection.read(self._loader, self._generators, self._capture())

    def _draw_for_workers_that_live_on(self) -> None:
        """Draw what a loader draws to seed its workers, where it would not because they are there already.

        A resume makes new ones: without this, a later pass would get another order there than where it was begun.
        """
        loader = self._loader
        if isinstance(loader, DataLoader) and self._keeper is None:
            is_alive = loader.persistent_workers and getattr(loader, "_iterator", None) is not None
            if is_alive:
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _load_data(self, start: Position) -> None:
        """Bring an elastic data set to where it was when the pass began."""
        if self._elastic is not None and start.data:
            self._elastic.load_state_dict(start.data["at_dawn"])

    def _hand_over_data(self, start: Position) -> None:
        """Let an elastic data set go on from where all former ranks were."""
        move = start.move
        if self._elastic is not None and move and all(data is not None for data in move.data):
            self._elastic.load_state_dicts(move.data)

    def _capture(self) -> rng.States:
        own = [generator.get_state() for generator in self._generators]
        return {"global": rng.capture(), "own": own}

    def _restore(self, states: rng.States) -> None:
        rng.restore(states["global"])
        generators = self._generators
        if len(generators) == len(states["own"]):
            # Another loader than at the checkpoint may have others; they stay as the script made them.
            for generator, state in zip(generators, states["own"], strict=True):
                generator.set_state(state)

    def _warn_of_what_no_checkpoint_sees(self) -> None:
        # Of a stream that continues, workers read again all that they have read, and draw the same.
        if getattr(self._loader, "persistent_workers", False) and not self._continues:
            self._warn(
                "persistent_workers keep their random state from pass to pass, where no checkpoint sees it: "
                "after a resume the order of the data is exact, random augmentation in the workers is not"
            )
        if getattr(self._loader, "num_workers", 0) and not getattr(self._loader, "in_order", True):
            self._warn(
                "in_order=False gives batches as workers finish them, so nobody knows which ones were taken: "
                "after a resume some come twice and some never"
            )

    def _warn(self, words: str) -> None:
        if words and self._tells:
            log_info(words)


def _parts(loader: object) -> list[Any]:
    """The loader and what chooses its samples, each once."""
    parts = [loader, getattr(loader, "dataset", None), getattr(loader, "batch_sampler", None)]
    for part in parts:
        # Samplers are put into samplers; the loop goes over what it finds, too.
        inner = getattr(part, "sampler", None)
        if not any(inner is known for known in parts):
            parts.append(inner)
    return [part for part in parts if part is not None]


def _generators(parts: list[Any]) -> list[torch.Generator]:
    """Generators that were given to the loader or its samplers, each once."""
    found = (getattr(part, "generator", None) for part in parts)
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _inherited(start: Position) -> SamplingScheme | None:
    """The deal of a pass that others began, and of which the start is in the middle."""
    deal = SamplingScheme.parse(start.deal) if start.deal else None
    return deal if deal and deal.is_inherited else None


class _End:
    """What comes after the last batch of a pass; None may be a batch."""


_END = _End()
