"""Agreement: whether all ranks have the same state, where a checkpoint holds it once for all of them.

A rank states what it has: each value that is no tensor, and the kind and checksum of each tensor. The digests of these statements are
compared: at `track` by all ranks together, and at a save by the first rank, which finds them in the records. Only where they
differ are the statements themselves exchanged, to name the first entry that does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from typing import Final

from holdfast_worker.checkpoint.checksums import crc, raw
from holdfast_worker.checkpoint.state_dict import A_TENSOR, UnserializableState, entries
from holdfast_worker.checkpoint.stateful import TrackedState
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.sharding import memory_of
from holdfast_worker.distributed.tensor_layout import Owner, TensorSpec
from holdfast_worker.protocol.reports import Json

Statement = Mapping[str, tuple[str, str]]
"""By path: the value in words, and the checksum of the values of a tensor; empty where they are not compared."""

SHARED: Final = frozenset({Owner.ALL, Owner.ALIKE, Owner.SHARDS})
"""The holders of tensors that all ranks know alike."""

SHOWN: Final = 60
"""Characters of a value in a message. More characters hide the message, fewer may not show where two values differ."""


STATED: Final = 1000
"""Characters of a value in a statement; of longer ones there is the digest. With more, an array of a script is held once more as
text; with fewer, values of some lines cannot be shown any more."""


class Unlike(Exception):
    """The ranks have different states; the message names the first entry that differs."""


class Apart(Exception):
    """The ranks have different values of what DDP keeps the same; the message names the first tensor that differs."""


def form_of(kind: TensorSpec) -> str:
    """A tensor without its values, in words."""
    return f"{kind.dtype} {list(kind.shape)}"


def statement(
    keeping: Mapping[str, Owner],
    trees: Mapping[str, Json],
    forms: Mapping[str, str],
    sums: Mapping[str, int],
) -> Statement:
    """State what a rank has of everything that a checkpoint holds once for all ranks.

    `keeping`: the holder of each tracked object. `forms`: of all tensors that no rank has for itself alone. `sums`: of those
    tensors that are compared, and maybe of others.
    """
    # The dot keeps an object apart from what its state begins with.
    stated = {f"{name}.": (holder.name, "") for name, holder in keeping.items()}
    stated |= {n: (form, f"{sums[n]:016x}" if n in sums else "") for n, form in forms.items()}
    shared = [name for name in trees if keeping[name] is Owner.ALIKE]
    for path, text in chain.from_iterable(entries(trees[name], name) for name in shared):
        # The tensors that are left are of one rank alone. That each rank has such a one is shared.
        if text != A_TENSOR or path not in forms:
            while path in stated:
                # Two keys that read alike, such as "a.b" and "b" in "a".
                path += "'"  # noqa: PLW2901
            stated[path] = (text if len(text) <= STATED else _digested(text), "")
    return stated


def digest_of(stated: Statement) -> str:
    """The same for the same statements."""
    return hashlib.sha256(json.dumps(sorted(stated.items())).encode()).hexdigest()


def agree(tracked: TrackedState, ranks: ProcessGroup) -> None:
    """Check that a checkpoint can hold what is tracked, and that all ranks track the same. All ranks call it.

    Raises:
        Unstorable: a rank tracks something that no checkpoint can hold; the same on all ranks.
        Unlike: the ranks differ in what a checkpoint holds once for all of them; the same on all ranks.
    """
    flaw = ""
    try:
        tracked.check()
        trees, encoder = tracked.encode()
    except UnserializableState as error:
        flaw = str(error)
    flaw = ranks.first_message(flaw)
    if flaw:
        raise UnserializableState(flaw)
    if ranks.world_size == 1:
        return
    shared = {n: t for n, t in encoder.tensors.items() if encoder.holders[n] in SHARED}
    sums = {
        n: crc(raw(memory_of(t)))
        for n, t in shared.items()
        if encoder.holders[n] in (Owner.ALL, Owner.ALIKE)
    }
    forms = {n: form_of(TensorSpec.of(t)) for n, t in shared.items()}
    words = first_difference(ranks, statement(tracked.keeping, trees, forms, sums))
    if words:
        raise Unlike(words)


def first_difference(ranks: ProcessGroup, stated: Statement) -> str:
    """The first entry in which a rank differs from the first one, in words, on all ranks; empty if none does."""
    mine = digest_of(stated)
    if not ranks.all_reduce_max([float(ranks.broadcast(mine) != mine)])[0]:
        return ""
    told = json.loads(ranks.broadcast(json.dumps(stated)))
    return ranks.first_message(_difference(told, stated, ranks.rank))


def _difference(first: Mapping[str, list[str]], here: Statement, rank: int) -> str:
    for path in {**first, **here}:
        if path not in here:
            flaw = f"is tracked on rank 0 and not on rank {rank}"
        elif path not in first:
            flaw = f"is tracked on rank {rank} and not on rank 0"
        elif first[path][0] != here[path][0]:
            flaw = (
                f"is {_short(first[path][0])} on rank 0 and {_short(here[path][0])} on rank {rank}"
            )
        elif first[path][1] != here[path][1]:
            flaw = f"has different values on rank 0 and rank {rank}"
        else:
            continue
        name = path.partition(".")[0]
        return (
            f"{path.removesuffix('.')} {flaw}, and a checkpoint holds one {name} for all ranks: make it the same on all of them, "
            f'or keep it for each rank with run.track(..., per_rank=["{name}"])'
        )
    return ""


def _digested(text: str) -> str:
    """A long value by its digest; short enough to be shown."""
    return f"{len(text)} characters of SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
