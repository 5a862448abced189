"""Lists of hosts as Slurm writes them: `n[1-3,07],login` stands for n1, n2, n3, n07 and login."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final

MOST_HOSTS: Final = 100_000
"""Of one list. Larger takes a slip of the pen for a cluster and fills memory with it, smaller refuses the largest there are."""

_WORD: Final = re.compile(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+")
"""One of a list: text and ranges in brackets, in any order."""
_PART: Final = re.compile(r"\[([^\[\]]*)\]")


def expand(hosts: str) -> list[str]:
    """Every host of the list, in its order.

    Raises:
        ValueError: it is none.
    """
    found: list[str] = []
    at = 0
    for word in _WORD.finditer(hosts):
        if hosts[at : word.start()] != ("," if found else ""):
            break
        found += itertools.islice(_each(word[0], hosts), MOST_HOSTS + 1 - len(found))
        at = word.end()
    if at != len(hosts) or not found:
        raise ValueError(f"{hosts!r} is not a list of hosts such as n[1-3,7],login")
    if len(found) > MOST_HOSTS:
        raise ValueError(f"{hosts!r} has more than {MOST_HOSTS} hosts")
    return found


def _each(word: str, hosts: str) -> Iterator[str]:
    """The hosts of one word, the last of its ranges turning fastest."""
    texts = _PART.split(word)
    # Text and what stood between brackets take turns.
    choices = [
        list(_of_range(text, hosts)) if place % 2 else [text] for place, text in enumerate(texts)
    ]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _of_range(text: str, hosts: str) -> Iterator[str]:
    """The numbers of `1-3,07`, as wide as they are written."""
    for part in text.split(","):
        bounds = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (bounds[1], bounds[2] or bounds[1]) if bounds else ("1", "0")
        if int(last) < int(first) or int(last) - int(first) >= MOST_HOSTS:
            raise ValueError(f"{hosts!r} is not a list of hosts: [{text}] is no range such as [1-3,7]")  # fmt: skip
        yield from (str(host).zfill(len(first)) for host in range(int(first), int(last) + 1))
