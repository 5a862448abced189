"""Rendezvous address and backend of a run, from the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from holdfast_worker.protocol.environment import Env, int_variable

ENV_INIT_METHOD: Final = "env://"
"""Rendezvous at MASTER_ADDR and MASTER_PORT, which torchrun sets."""
BACKENDS: Final = ("gloo", "nccl")
"""Supported backends of torch.distributed."""
MAX_PORT: Final = 65_535


def init_method(env: Mapping[str, str], fallback: Callable[[], str] | None = None) -> str:
    """The `init_method` of torch from the environment, or else from `fallback`.

    Raises:
        ValueError: the environment has an invalid address, or there is no address.
    """
    method = env.get(Env.INIT_METHOD, "")
    if method and method != ENV_INIT_METHOD:
        return _validate_init_method(method)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if not missing:
        _check_port("MASTER_PORT", int_variable(env, "MASTER_PORT", 0))
        return ENV_INIT_METHOD
    if fallback and not method:
        return fallback()
    raise ValueError(
        f"{missing[0]} is not set, so that the ranks have no rendezvous: "
        f"start the script with torchrun, or set {Env.INIT_METHOD} to tcp://HOST:PORT"
    )


def tcp_init_method(host: str, port: int) -> str:
    """The `init_method` of torch for a host and port."""
    _check_port(Env.MASTER_PORT, port)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def backend(env: Mapping[str, str]) -> str | None:
    """The configured backend; None: chosen by device.

    Raises:
        ValueError: the environment names an unsupported backend.
    """
    text = env.get(Env.BACKEND, "")
    if not text or text in BACKENDS:
        return text or None
    [closest, *_] = [*get_close_matches(text.lower(), BACKENDS, 1, 0.5), ""]
    guess = f"did you mean {closest}? " if closest else ""
    raise ValueError(f"{Env.BACKEND} is {text!r}: {guess}write {' or '.join(BACKENDS)}")


def _validate_init_method(method: str) -> str:
    """Validate `tcp://HOST:PORT` or `file:///PATH`."""
    try:
        parts = urlsplit(method)
        is_address = parts.scheme == "tcp" and bool(parts.hostname and parts.port)
    except ValueError:  # An invalid port.
        is_address = False
    else:
        if parts.scheme == "file" and not parts.netloc and len(parts.path) > 1:
            return method
    if not is_address:
        raise ValueError(
            f"{Env.INIT_METHOD} is {method!r}: write env://, tcp://HOST:PORT or file:///PATH"
        )
    return method


def _check_port(name: str, port: int) -> None:
    if not 0 < port <= MAX_PORT:
        raise ValueError(f"{name} is {port}, which is not a port: write 1024 to {MAX_PORT}")
