"""Who removes old checkpoints, and what that means for what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_worker.wire import Tidy

from holdfast.domain.spec import JobSpec
from holdfast.errors import Flaw


def wrong_keep(spec: JobSpec) -> Iterator[Flaw]:
    """A rule that whoever removes the others does not know."""
    checkpoint = spec.holdfast.checkpoint
    if (
        checkpoint is None
        or spec.tidied_by is not Tidy.WORKER
        or checkpoint.keep.is_by_number_alone
    ):
        return
    if checkpoint.tidy is Tidy.WORKER:
        reason, way_out = "tidy says that the worker removes old checkpoints", "leave tidy out"
    else:
        reason, way_out = spec.locked_out, "give it access, and write tidy: service"
    yield Flaw(
        "#/holdfast/checkpoint/keep",
        f"every and best are known to the service alone, and {reason}; {way_out}, or keep a number",
    )


def notes_of_keep(spec: JobSpec) -> Iterator[str]:
    """That the worker removes old checkpoints, where nobody has said so."""
    checkpoint = spec.holdfast.checkpoint
    if checkpoint is not None and checkpoint.tidy is None and spec.locked_out:
        yield (
            f"holdfast.checkpoint.tidy: {spec.locked_out}, so the worker removes old checkpoints; "
            "if the service has access of its own, write tidy: service"
        )
