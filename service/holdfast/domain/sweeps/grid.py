"""The parameters of a sweep, and the jobs of their combinations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.domain.jobfile.env_vars import name_error
from holdfast.errors import BadRequest

MAX_VALUE_CHARS: Final = 200
"""Characters of one value. A higher value makes tables of a sweep unreadable."""
_RANGE: Final = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})")


def parse_values(name: str, texts: Sequence[str], most: int) -> tuple[str, ...]:
    """The values of a parameter: each text is one, or a range of integers such as 1..8.

    Raises:
        BadRequest: the name or a value is not accepted, or there are more than `most`.
    """
    if why := name_error(name):
        raise BadRequest(f"params: {name[:100]!r} {why}")
    values = list[str]()
    for text in texts:
        if match := _RANGE.fullmatch(text):
            first, last = int(match[1]), int(match[2])
            if last < first:
                raise BadRequest(
                    f"params: {name}: the range {text} is empty; write {last}..{first}"
                )
            values += map(str, range(first, min(last, first + most) + 1))
        else:
            values.append(text)
    if not values or "" in values:
        raise BadRequest(f"params: {name} has an empty value; write {name}=A,B or {name}=1..8")
    if long := next((value for value in values if len(value) > MAX_VALUE_CHARS), None):
        raise BadRequest(
            f"params: {name}: a value has {len(long)} characters; write at most {MAX_VALUE_CHARS}"
        )
    if twice := next((value for value in values if values.count(value) > 1), None):
        raise BadRequest(f"params: {name} has the value {twice} twice; remove one")
    return tuple(values)


def combinations(params: Mapping[str, Sequence[str]], most: int) -> list[dict[str, str]]:
    """The parameters of each job: all combinations, the last parameter changing first.

    Raises:
        BadRequest: there are more than `most`, or a parameter is malformed.
    """
    if not params:
        raise BadRequest("params: name at least one, such as lr=1e-4,3e-4")
    values = {name: parse_values(name, texts, most) for name, texts in params.items()}
    count = 1
    for each in values.values():
        count *= len(each)
    if count > most:
        raise BadRequest(
            f"params: these are {count:,} combinations or more, and a sweep accepts at most {most:,} (HOLDFAST_SWEEP_JOBS); "
            "leave values out, or split the sweep"
        )
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]
