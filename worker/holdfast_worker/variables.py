"""Variables of an environment, as what they stand for."""

from __future__ import annotations

from collections.abc import Mapping


def number(env: Mapping[str, str], name: str, otherwise: int) -> int:
    """The whole number that a variable says; `otherwise` where it is absent or empty.

    Raises:
        ValueError: it says something else.
    """
    text = env.get(name, "")
    if not text:
        return otherwise
    if not text.isdecimal():
        msg = f"{name} is {text!r}, which is not a number"
        raise ValueError(msg)
    return int(text)
