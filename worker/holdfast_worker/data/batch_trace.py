"""Logs the digest of each step's batch per rank, so that two runs can be compared.

For proofs only: digesting every batch takes time and waits for the GPU.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from torch import Tensor

from holdfast_worker.checkpoint.checksums import tensor_bytes
from holdfast_worker.config import Config
from holdfast_worker.console import log_info
from holdfast_worker.protocol.environment import BATCH_TRACE_PREFIX
from holdfast_worker.telemetry.metrics import Readings

B = TypeVar("B")

DIGEST_DIGITS: Final = 16
"""Hexadecimal digits of a digest. A higher value lengthens lines; with a lower value, two of
a million batches might collide."""


def trace_batches(
    batches: Iterable[B], config: Config, step: int, logged: Callable[[], Readings]
) -> Iterator[B]:
    """Yield the batches; log each one from `step` on if the configuration requests it.

    `logged` reads the metrics that the script logged in the previous step.
    """
    if config.batch_trace_ms is None:
        return iter(batches)
    return _traced(batches, config, step, logged)


def _traced(
    batches: Iterable[B], config: Config, step: int, logged: Callable[[], Readings]
) -> Iterator[B]:
    began_s = time.monotonic()
    for number, batch in enumerate(batches, start=step):
        rest_s = began_s + (config.batch_trace_ms or 0) / 1000 - time.monotonic()
        # Short steps would end before a test could preempt a node.
        time.sleep(max(0.0, rest_s))
        began_s = time.monotonic()
        # Read at this point, so that the values belong to the step that has just ended.
        values = {name: one.value for name, one in logged()().items()}
        line = {"rank": config.rank, "step": number, "batch": batch_digest(batch), "logged": values}
        log_info(f"{BATCH_TRACE_PREFIX}{json.dumps(line, separators=(',', ':'))}")
        yield batch


def batch_digest(batch: object) -> str:
    """A digest of any batch, equal for equal values; tensors are digested by their bytes."""
    whole = hashlib.sha256()
    for part in _parts(batch):
        whole.update(part)
    return whole.hexdigest()[:DIGEST_DIGITS]


def _parts(value: object) -> Iterator[bytes | memoryview]:
    """The value as bytes, each part prefixed with its type or shape."""
    match value:
        case Tensor():
            yield f"{value.dtype}{tuple(value.shape)}".encode()
            yield tensor_bytes(value)
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
        case _ if hasattr(value, "__dict__"):  # repr() may include its memory address.
            yield from _parts(vars(value))
        case _:
            yield repr(value).encode()
