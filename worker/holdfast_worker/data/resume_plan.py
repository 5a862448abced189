"""Plans how a resumable loader continues from a position with the current loader. Pure.

Consumed samples are not repeated and other samples are not lost, as far as the position proves it:

* Unchanged loader: the pass begins as before and consumed batches are skipped. Exact to the bit.
* Known order, and all ranks at one position of it: the rest is divided among the current ranks, in batches of the current size.
  Exact to the sample.
* Different number of ranks without such an order: the pass restarts. Some samples are repeated, none is lost, and a
  message reports it.
* Same number of ranks with different data: refused, because the change can be reverted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from holdfast_worker.data.position import Position, WorldSizeChange
from holdfast_worker.data.sample_order import Order, RandomOrder, Sequential
from holdfast_worker.data.sampling import SamplingScheme, SourceKind


class LoaderChanged(Exception):
    """The loader cannot reach the position of a checkpoint."""


@dataclass(frozen=True, slots=True)
class SkipConsumed:
    """Begin the pass as before, and skip the consumed batches."""


@dataclass(frozen=True, slots=True)
class RestoreLoaderState:
    """Begin the pass as before, and restore the loader's own state."""


@dataclass(frozen=True, slots=True)
class FinishPass:
    """Return the rest of a pass."""

    scheme: SamplingScheme
    """The order, the position in it, and its division among ranks."""


@dataclass(frozen=True, slots=True)
class StartPass:
    """Begin a new pass."""

    passes: int
    """The number of the pass, from 0."""


ResumeAction: TypeAlias = SkipConsumed | RestoreLoaderState | FinishPass | StartPass


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """The action of a resume, and a message about it."""

    action: ResumeAction
    message: str = ""
    """Empty if the resume is as expected."""


def plan_resume(start: Position, now: SamplingScheme) -> ResumePlan:
    """Plan the resume from `start` with the loader that `now` describes.

    Raises:
        LoaderChanged: it holds different data, or returns it in a different way.
    """
    was = SamplingScheme.parse(start.deal) if start.deal else None
    if start.move:
        return _plan_new_world_size(start, start.move, was, now)
    if was is None:
        return ResumePlan(SkipConsumed() if start.taken else StartPass(start.passes))
    return _plan_same_world_size(start, was, now)


def _plan_same_world_size(start: Position, was: SamplingScheme, now: SamplingScheme) -> ResumePlan:
    """Plan the resume with the same number of ranks."""
    rest = _remaining_pass(start, was, now)
    if was.matches(now) and _are_equal(was, now):
        if rest and now.jumps and not now.keeps_state:
            return ResumePlan(rest, SKIPPED_AUGMENTATION if now.workers and start.taken else "")
        if not _depends_on_workers(now) or was.workers == now.workers:
            return ResumePlan(SkipConsumed() if start.loader is None else RestoreLoaderState())
    elif was.is_pass_finished(start.taken):
        return ResumePlan(StartPass(start.passes + 1))
    is_one_order = was.kind is now.kind or was.replicas == now.replicas == 1
    if rest and is_one_order and was.length == now.length:
        return ResumePlan(rest)
    raise LoaderChanged(f"{_difference(was, now)}: revert this, or use a new store")


def _plan_new_world_size(
    start: Position, move: WorldSizeChange, was: SamplingScheme | None, now: SamplingScheme
) -> ResumePlan:
    """Plan the resume with a different number of ranks."""
    if (
        was
        and was.kind is now.kind is SourceKind.OWN
        and move.is_same_data
        and was.length == now.length
    ):
        return _plan_independent_orders(start, move, was, now)
    if now.is_elastic and all(data is not None for data in move.data):
        return ResumePlan(StartPass(move.passes))
    rest = _remaining_pass(start, was, now) if was else None
    why = _reshard_obstacle(move, was, now)
    if was is None or rest is None or why:
        message = f"{_describe_move(move)}, and {why}: this pass over the data restarts, {REPEATED_SAMPLES}"
        return ResumePlan(StartPass(move.passes), message)
    if was.is_pass_finished(start.taken):
        return ResumePlan(StartPass(start.passes + 1))
    if was.length != now.length:
        raise LoaderChanged(f"{_difference(was, now)}: revert this, or use a new store")
    return ResumePlan(rest)


def _plan_independent_orders(
    start: Position, move: WorldSizeChange, was: SamplingScheme, now: SamplingScheme
) -> ResumePlan:
    """Plan the resume of ranks that each read all of the data in a separate order."""
    if not move.is_new:
        action = _plan_same_world_size(start, was, now).action
    elif isinstance(was.order, Sequential) and move.is_same_place:
        action = _remaining_pass(start, was, now) or StartPass(start.passes)
    else:
        action = StartPass(start.passes)
    return ResumePlan(action, f"{_describe_move(move)}, {INDEPENDENT_ORDERS}")


def _remaining_pass(start: Position, was: SamplingScheme, now: SamplingScheme) -> FinishPass | None:
    """The rest of the pass, divided by the current loader; None if unknown or impossible."""
    consumed = was.consumed(start.taken)
    if consumed is None or now.order is None:
        return None
    return FinishPass(replace(now, order=was.order, base=consumed, is_inherited=True))


def _reshard_obstacle(
    move: WorldSizeChange, was: SamplingScheme | None, now: SamplingScheme
) -> str:
    """Why an order cannot be divided among a different number of ranks; empty if it can."""
    if was is None:
        return "the checkpoint does not record how the data was divided"
    for deal, ranks in ((was, move.former_world_size), (now, move.world_size)):
        match deal.kind:
            case SourceKind.STREAM:
                return f"{deal.name}, an iterable data set, cannot be divided again"
            case SourceKind.UNKNOWN | SourceKind.BARE:
                return f"the order of {deal.name} is unknown"
            case SourceKind.OWN if ranks > 1:
                return f"with {deal.name} each rank has a separate order"
            case _:
                pass
    return "" if move.is_same_place else "the ranks were not at one position of the same order"


def _are_equal(was: SamplingScheme, now: SamplingScheme) -> bool:
    """Whether the order of the pass is unchanged; an inherited order replaces the loader's."""
    return was.is_inherited or _signature(was.order) == _signature(now.order)


def _signature(order: Order | None) -> object:
    """The identity of an order; a random order is drawn again from the restored generators."""
    return order.length if isinstance(order, RandomOrder) else order


def _depends_on_workers(now: SamplingScheme) -> bool:
    return now.keeps_state or now.kind is SourceKind.STREAM


def _difference(was: SamplingScheme, now: SamplingScheme) -> str:
    """Describe what has changed in the loader."""
    if was.length != now.length:
        return (
            f"the checkpoint was taken within a pass over {was.length} samples, "
            f"but the data now has {now.length}"
        )
    if was.kind is not now.kind or was.name != now.name:
        return f"the checkpoint was taken with {was.name}, but the loader now uses {now.name}"
    if was.batch_size != now.batch_size:
        return (
            f"the checkpoint was taken with batches of {was.batch_size}, now they have "
            f"{now.batch_size}, and {was.name} cannot resume between two batches"
        )
    if was.workers != now.workers:
        return (
            f"the checkpoint was taken with num_workers={was.workers}, now it is {now.workers}, "
            "and the consumed samples depend on it"
        )
    return f"the loader with {was.name} returns its data in a different way than at the checkpoint"


def _describe_move(move: WorldSizeChange) -> str:
    return (
        f"the checkpoint is of {_ranks(move.former_world_size)}, now there {_are(move.world_size)}"
    )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


REPEATED_SAMPLES = "so some of its samples are repeated and none is lost"
INDEPENDENT_ORDERS = (
    "and each rank reads all of the data in a separate order: former ranks continue their orders, new ranks begin "
    "one; DistributedSampler and holdfast_worker.ExactSampler divide one order among all ranks"
)
SKIPPED_AUGMENTATION = "the data continues at the exact sample without reading earlier samples; random numbers in workers differ"
