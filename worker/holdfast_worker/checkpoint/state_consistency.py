"""Checks that all ranks agree on the state that a checkpoint stores once for all of them.

A rank states each non-tensor value, and the spec and checksum of each tensor. All ranks compare the digests of
these statements at `track`; rank 0 compares those in the shard metadata at a save. Only if they differ do the ranks exchange
the statements, to name the first entry that differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from typing import Final

from holdfast_worker.checkpoint.checksums import crc64, tensor_bytes
from holdfast_worker.checkpoint.state_dict import A_TENSOR, UnserializableState, entries
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.sharding import local_memory
from holdfast_worker.distributed.tensor_layout import Owner, TensorSpec
from holdfast_worker.protocol.reports import Json

Statement = Mapping[str, tuple[str, str]]
"""By path: the value as text, and the checksum of a tensor's values; empty if they are not
compared."""

SHARED: Final = frozenset({Owner.REPLICATED, Owner.VERIFIED_REPLICA, Owner.SHARDED})
"""Owners of tensors that exist on all ranks."""

MAX_SHOWN_CHARS: Final = 60
"""Characters of a value in a message. A higher value hides the message; a lower value may
hide where two values differ."""


MAX_STATED_CHARS: Final = 1000
"""Characters of a value in a statement; a longer value is replaced by its digest. With a
higher value, a large array of a script is held a second time as text; with a lower value, values of several lines
cannot be displayed."""


class InconsistentState(Exception):
    """The ranks have different state; the message names the first entry that differs."""


class ReplicasDiverged(Exception):
    """Tensors that DDP keeps equal differ between ranks; the message names the first one."""


def describe_spec(kind: TensorSpec) -> str:
    """A tensor's type and shape as text."""
    return f"{kind.dtype} {list(kind.shape)}"


def state_statement(
    owners: Mapping[str, Owner],
    trees: Mapping[str, Json],
    forms: Mapping[str, str],
    sums: Mapping[str, int],
) -> Statement:
    """State this rank's values of everything that a checkpoint stores once for all ranks.

    `owners`: the owner of each tracked object. `forms`: descriptions of all shared tensors. `sums`: checksums of the compared
    tensors, and possibly of more.
    """
    # The dot distinguishes an object from entries of its state.
    stated = {f"{name}.": (holder.name, "") for name, holder in owners.items()}
    stated |= {n: (form, f"{sums[n]:016x}" if n in sums else "") for n, form in forms.items()}
    shared = [name for name in trees if owners[name] is Owner.VERIFIED_REPLICA]
    for path, text in chain.from_iterable(entries(trees[name], name) for name in shared):
        # Other tensors belong to single ranks. That each rank has one is shared state.
        if text != A_TENSOR or path not in forms:
            while path in stated:
                # Different keys may have the same path, such as "a.b", and "b" in "a".
                path += "'"  # noqa: PLW2901
            stated[path] = (text if len(text) <= MAX_STATED_CHARS else _abbreviate(text), "")
    return stated


def digest_of(stated: Statement) -> str:
    """A digest of a statement, equal for equal statements."""
    return hashlib.sha256(json.dumps(sorted(stated.items())).encode()).hexdigest()


def check_consistency(tracked: TrackedState, ranks: ProcessGroup) -> None:
    """Check that the tracked state can be checkpointed and is consistent on all ranks.

    A collective call.

    Raises:
        UnserializableState: a rank tracks something that cannot be checkpointed; raised on all ranks.
        InconsistentState: the ranks differ in state that is stored once for all of them; raised on all ranks.
    """
    problem = ""
    try:
        tracked.check()
        trees, encoder = tracked.encode()
    except UnserializableState as error:
        problem = str(error)
    problem = ranks.first_message(problem)
    if problem:
        raise UnserializableState(problem)
    if ranks.world_size == 1:
        return
    shared = {n: t for n, t in encoder.tensors.items() if encoder.owners[n] in SHARED}
    sums = {
        n: crc64(tensor_bytes(local_memory(t)))
        for n, t in shared.items()
        if encoder.owners[n] in (Owner.REPLICATED, Owner.VERIFIED_REPLICA)
    }
    forms = {n: describe_spec(TensorSpec.from_tensor(t)) for n, t in shared.items()}
    difference = first_difference(ranks, state_statement(tracked.owners, trees, forms, sums))
    if difference:
        raise InconsistentState(difference)


def first_difference(ranks: ProcessGroup, stated: Statement) -> str:
    """The first entry that differs from rank 0, as text on all ranks; empty if all are equal."""
    mine = digest_of(stated)
    if not ranks.all_reduce_max([float(ranks.broadcast(mine) != mine)])[0]:
        return ""
    received = json.loads(ranks.broadcast(json.dumps(stated)))
    return ranks.first_message(_difference(received, stated, ranks.rank))


def _difference(first: Mapping[str, list[str]], here: Statement, rank: int) -> str:
    for path in {**first, **here}:
        if path not in here:
            problem = f"is tracked on rank 0 and not on rank {rank}"
        elif path not in first:
            problem = f"is tracked on rank {rank} and not on rank 0"
        elif first[path][0] != here[path][0]:
            problem = (
                f"is {_short(first[path][0])} on rank 0 and {_short(here[path][0])} on rank {rank}"
            )
        elif first[path][1] != here[path][1]:
            problem = f"has different values on rank 0 and rank {rank}"
        else:
            continue
        name = path.partition(".")[0]
        return (
            f"{path.removesuffix('.')} {problem}, and a checkpoint holds one {name} for all ranks: make it the same on all of them, "
            f'or keep it for each rank with run.track(..., per_rank=["{name}"])'
        )
    return ""


def _abbreviate(text: str) -> str:
    """A digest of a long value, short enough to display."""
    return f"{len(text)} characters of SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
