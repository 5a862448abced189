"""Where the ranks of a run find each other, and what they talk by, as the environment asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from holdfast_worker.protocol.environment import Env, number

BY_ENVIRONMENT: Final = "env://"
"""At MASTER_ADDR and MASTER_PORT, as torchrun sets them."""
BACKENDS: Final = ("gloo", "nccl")
"""What ranks may talk by."""
LAST_PORT: Final = 65_535


def init_method(env: Mapping[str, str], otherwise: Callable[[], str] | None = None) -> str:
    """The `init_method` for torch. `otherwise` knows a place if the environment names none; None: nobody does.

    Raises:
        ValueError: what the environment names is no such place; or there is none.
    """
    asked = env.get(Env.INIT_METHOD, "")
    if asked and asked != BY_ENVIRONMENT:
        return _place(asked)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if not missing:
        _check_port("MASTER_PORT", number(env, "MASTER_PORT", 0))
        return BY_ENVIRONMENT
    if otherwise and not asked:
        return otherwise()
    raise ValueError(
        f"{missing[0]} is not set, so that the ranks do not know where to meet: "
        f"start the script with torchrun, or set {Env.INIT_METHOD} to tcp://HOST:PORT"
    )


def by_address(host: str, port: int) -> str:
    """The `init_method` for torch, for a port of a host."""
    _check_port(Env.MASTER_PORT, port)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def backend(env: Mapping[str, str]) -> str | None:
    """One of `BACKENDS`; None: what suits the device.

    Raises:
        ValueError: the environment names another.
    """
    text = env.get(Env.BACKEND, "")
    if not text or text in BACKENDS:
        return text or None
    [meant, *_] = [*get_close_matches(text.lower(), BACKENDS, 1, 0.5), ""]
    guess = f"did you mean {meant}? " if meant else ""
    raise ValueError(f"{Env.BACKEND} is {text!r}: {guess}write {' or '.join(BACKENDS)}")


def _place(asked: str) -> str:
    """`tcp://HOST:PORT` or `file:///PATH`, as asked."""
    try:
        parts = urlsplit(asked)
        is_address = parts.scheme == "tcp" and bool(parts.hostname and parts.port)
    except ValueError:  # A port that is no port.
        is_address = False
    else:
        if parts.scheme == "file" and not parts.netloc and len(parts.path) > 1:
            return asked
    if not is_address:
        raise ValueError(
            f"{Env.INIT_METHOD} is {asked!r}: write env://, tcp://HOST:PORT or file:///PATH"
        )
    return asked


def _check_port(name: str, port: int) -> None:
    if not 0 < port <= LAST_PORT:
        raise ValueError(f"{name} is {port}, which is no port: write 1024 to {LAST_PORT}")
