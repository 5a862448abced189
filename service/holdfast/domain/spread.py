"""How accelerators are spread over nodes: many nodes of few are slower than few nodes of many. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.domain.candidates import candidates

_COUNTED: Final = re.compile(r"\s*([^:]+?)\s*(?::\s*(\d+))?\s*")
MOST_IN_ONE: Final = 8
"""Accelerators that clouds build into one node. More would advise nodes that nobody sells, fewer keeps silent about some that are."""


def notes_of_spread(resources: Mapping[str, Any], nodes: int) -> Iterator[str]:
    """A sentence for each kind of accelerator of which one node could hold all that the job asks for."""
    asked = [pair for each in candidates(resources) for pair in _pairs(each.words.get("accelerators"))]  # fmt: skip
    for name, count in dict.fromkeys(asked):
        total = nodes * count
        if nodes > 1 and total <= MOST_IN_ONE:
            yield (
                f"num_nodes: {nodes} nodes of {name}:{count} pass all gradients over the network at each step; one node of "
                f"{name}:{total} is usually faster, where it is to be had"
            )


def _pairs(accelerators: object) -> Iterator[tuple[str, int]]:
    """Names and counts; nothing of what is written in another way, which others judge."""
    match accelerators:
        case str() if found := _COUNTED.fullmatch(accelerators):
            yield found[1], int(found[2] or 1)
        case Mapping():
            yield from (
                (str(name), int(n)) for name, n in accelerators.items() if isinstance(n, int)
            )
        case list() | set():
            for one in accelerators:
                yield from _pairs(one)
