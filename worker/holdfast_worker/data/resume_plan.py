"""How a feed goes on from a position, with the loader that there is now. Pure.

What was taken is not given again, and what was not taken is given, as far as that can be known: nothing is guessed.

* The loader is the one it was: the pass is begun as it was begun, and what was taken is skipped. Exact to the bit.
* The order of the pass is known, and all ranks together were at one place of it: the rest is dealt to the ranks that there
  are now, in batches of the size that they have now. Exact to the sample.
* Another number of ranks, and no such order: the pass begins again. Some samples come twice, none is left out, and that
  is said.
* As many ranks, and other data: refused, for what was changed can be changed back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from holdfast_worker.data.position import Position, WorldSizeChange
from holdfast_worker.data.sample_order import Order, RandomOrder, Sequential
from holdfast_worker.data.sampling import SamplingScheme, SourceKind


class LoaderChanged(Exception):
    """The loader does not reach the position that a checkpoint was taken at."""


@dataclass(frozen=True, slots=True)
class SkipConsumed:
    """Begin the pass as it was begun, and skip what was taken."""


@dataclass(frozen=True, slots=True)
class RestoreLoaderState:
    """Begin the pass as it was begun, and let the loader take its own state back."""


@dataclass(frozen=True, slots=True)
class FinishPass:
    """Give what is left of a pass."""

    deal: SamplingScheme
    """Of which order, from where on, and to whom."""


@dataclass(frozen=True, slots=True)
class StartPass:
    """Begin a pass."""

    passes: int
    """Its number."""


Onward: TypeAlias = SkipConsumed | RestoreLoaderState | FinishPass | StartPass


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What to do, and what to say about it."""

    onward: Onward
    words: str = ""
    """Empty: it is what everybody expects."""


def decide(start: Position, now: SamplingScheme) -> ResumePlan:
    """How to go on from `start` with the loader that `now` describes.

    Raises:
        LoaderChanged: it holds other data, or gives it in another way.
    """
    was = SamplingScheme.parse(start.deal) if start.deal else None
    if start.move:
        return _elsewhere(start, start.move, was, now)
    if was is None:
        return ResumePlan(SkipConsumed() if start.taken else StartPass(start.passes))
    return _at_home(start, was, now)


def _at_home(start: Position, was: SamplingScheme, now: SamplingScheme) -> ResumePlan:
    """How as many ranks go on as there were."""
    rest = _rest(start, was, now)
    if was.is_like(now) and _are_equal(was, now):
        if rest and now.jumps and not now.keeps_state:
            return ResumePlan(rest, JUMPED if now.workers and start.taken else "")
        if not _depends_on_workers(now) or was.workers == now.workers:
            return ResumePlan(SkipConsumed() if start.loader is None else RestoreLoaderState())
    elif was.is_over(start.taken):
        return ResumePlan(StartPass(start.passes + 1))
    is_one_order = was.kind is now.kind or was.replicas == now.replicas == 1
    if rest and is_one_order and was.length == now.length:
        return ResumePlan(rest)
    raise LoaderChanged(f"{_difference(was, now)}: put it back, or start with a new store")


def _elsewhere(
    start: Position, move: WorldSizeChange, was: SamplingScheme | None, now: SamplingScheme
) -> ResumePlan:
    """How another number of ranks goes on."""
    if (
        was
        and was.kind is now.kind is SourceKind.OWN
        and move.is_alike
        and was.length == now.length
    ):
        return _by_themselves(start, move, was, now)
    if now.is_elastic and all(data is not None for data in move.data):
        return ResumePlan(StartPass(move.passes))
    rest = _rest(start, was, now) if was else None
    why = _obstacle(move, was, now)
    if was is None or rest is None or why:
        said = f"{_moved(move)}, and {why}: this pass over the data begins again, {TWICE}"
        return ResumePlan(StartPass(move.passes), said)
    if was.is_over(start.taken):
        return ResumePlan(StartPass(start.passes + 1))
    if was.length != now.length:
        raise LoaderChanged(f"{_difference(was, now)}: put it back, or start with a new store")
    return ResumePlan(rest)


def _by_themselves(
    start: Position, move: WorldSizeChange, was: SamplingScheme, now: SamplingScheme
) -> ResumePlan:
    """How ranks go on of which each goes through all of the data in an order of its own."""
    if not move.is_new:
        onward = _at_home(start, was, now).onward
    elif isinstance(was.order, Sequential) and move.is_together:
        onward = _rest(start, was, now) or StartPass(start.passes)
    else:
        onward = StartPass(start.passes)
    return ResumePlan(onward, f"{_moved(move)}, {BY_THEMSELVES}")


def _rest(start: Position, was: SamplingScheme, now: SamplingScheme) -> FinishPass | None:
    """What is left of the pass, dealt as the loader of now deals; None: that cannot be told, or not be done."""
    consumed = was.consumed(start.taken)
    if consumed is None or now.order is None:
        return None
    return FinishPass(replace(now, order=was.order, base=consumed, is_inherited=True))


def _obstacle(move: WorldSizeChange, was: SamplingScheme | None, now: SamplingScheme) -> str:
    """Why an order cannot be dealt to another number of ranks; empty if it can."""
    if was is None:
        return "the checkpoint does not say how the data was dealt"
    for deal, ranks in ((was, move.former), (now, move.world_size)):
        match deal.kind:
            case SourceKind.STREAM:
                return f"{deal.name}, an iterable data set, cannot be divided anew"
            case SourceKind.UNKNOWN | SourceKind.BARE:
                return f"the order of {deal.name} is not known"
            case SourceKind.OWN if ranks > 1:
                return f"with {deal.name} each rank has an order of its own"
            case _:
                pass
    return "" if move.is_together else "the ranks were not at one place of the same order"


def _are_equal(was: SamplingScheme, now: SamplingScheme) -> bool:
    """Whether the pass has the order now that it had. One that was inherited is put into the loader in any case."""
    return was.is_inherited or _signature(was.order) == _signature(now.order)


def _signature(order: Order | None) -> object:
    """What identifies an order. One that is drawn is drawn again from where the generators were."""
    return order.length if isinstance(order, RandomOrder) else order


def _depends_on_workers(now: SamplingScheme) -> bool:
    return now.keeps_state or now.kind is SourceKind.STREAM


def _difference(was: SamplingScheme, now: SamplingScheme) -> str:
    """What is not as it was, in words."""
    if was.length != now.length:
        return (
            f"the checkpoint was taken within a pass over {was.length} samples, "
            f"and now the data has {now.length}"
        )
    if was.kind is not now.kind or was.name != now.name:
        return f"the checkpoint was taken with {was.name}, and now there is {now.name}"
    if was.batch_size != now.batch_size:
        return (
            f"the checkpoint was taken with batches of {was.batch_size}, now they are of "
            f"{now.batch_size}, and {was.name} cannot be entered between two batches"
        )
    if was.workers != now.workers:
        return (
            f"the checkpoint was taken with num_workers={was.workers}, now it is {now.workers}, "
            "and what was taken depends on it"
        )
    return f"the loader around {was.name} gives its data in another way than at the checkpoint"


def _moved(move: WorldSizeChange) -> str:
    return f"the checkpoint is of {_ranks(move.former)}, now there {_are(move.world_size)}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


TWICE = "so that some of its samples come twice, and none is left out"
BY_THEMSELVES = (
    "and each goes through all of the data in an order of its own: ranks that were there go on in theirs, new ones begin "
    "one; DistributedSampler and holdfast_worker.ExactSampler divide one order among all"
)
JUMPED = "the data goes on at the exact sample without reading what came before; random numbers that workers draw are new ones"
