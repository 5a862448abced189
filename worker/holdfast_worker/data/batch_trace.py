"""A witness of a run: what each step was given, as a line in the log of its rank, so that two runs can be compared.

It is there for proofs alone: to read every batch whole costs time, and waits for the GPU.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from torch import Tensor

from holdfast_worker.checkpoint.checksums import raw
from holdfast_worker.config import Config
from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import WITNESS
from holdfast_worker.telemetry.metrics import Readings

B = TypeVar("B")

DIGITS: Final = 16
"""Of a digest. More make lines longer; with fewer, two of a million batches might look alike."""


def trace_batches(
    batches: Iterable[B], config: Config, step: int, logged: Callable[[], Readings]
) -> Iterator[B]:
    """The same batches, from the one of step `step` on; each is written down before it is given, if the environment asks.

    `logged` reads what the script has logged of the step before.
    """
    if config.witness_ms is None:
        return iter(batches)
    return _written(batches, config, step, logged)


def _written(
    batches: Iterable[B], config: Config, step: int, logged: Callable[[], Readings]
) -> Iterator[B]:
    began_s = time.monotonic()
    for number, batch in enumerate(batches, start=step):
        rest_s = began_s + (config.witness_ms or 0) / 1000 - time.monotonic()
        # Short steps would be over before anybody could take a node from them.
        time.sleep(max(0.0, rest_s))
        began_s = time.monotonic()
        # Read now, and not when this was called: it is of the step that has just ended.
        values = {name: one.value for name, one in logged()().items()}
        line = {"rank": config.rank, "step": number, "batch": digest(batch), "logged": values}
        log_info(f"{WITNESS}{json.dumps(line, separators=(',', ':'))}")
        yield batch


def digest(batch: object) -> str:
    """Of whatever a loader gives: equal for equal values, of tensors by their bytes."""
    whole = hashlib.sha256()
    for part in _parts(batch):
        whole.update(part)
    return whole.hexdigest()[:DIGITS]


def _parts(value: object) -> Iterator[bytes | memoryview]:
    """The value as bytes, each part behind what tells it from others."""
    match value:
        case Tensor():
            yield f"{value.dtype}{tuple(value.shape)}".encode()
            yield raw(value)
        case np.ndarray():
            yield f"{value.dtype}{value.shape}".encode()
            yield value.tobytes()
        case str() | bytes():
            yield repr(value).encode()
        case Mapping():
            for key, item in value.items():
                yield f"{key!r}:".encode()
                yield from _parts(item)
        case Sequence():
            yield f"[{len(value)}]".encode()
            for item in value:
                yield from _parts(item)
        case _ if hasattr(
            value, "__dict__"
        ):  # What repr() says of it may name its place in memory.
            yield from _parts(vars(value))
        case _:
            yield repr(value).encode()
