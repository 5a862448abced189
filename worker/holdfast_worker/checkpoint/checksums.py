"""CRC64-NVME of memory, and of memory that was looked at in pieces.

The checksum that S3 computes itself, so that a store that checks can check the same number. It tells a changed object
from the one that was written, at more than ten gigabytes a second; it is no protection against somebody who forges one.

The digest of weights: equal for equal values, wherever the tensors live and however many ranks hold them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import torch
from awscrt.checksums import combine_crc64nvme, crc64nvme
from torch import Tensor

from holdfast_worker.distributed.tensor_layout import TensorSpec

STRIDE: Final = 1 << 20
"""Bytes looked at in one go. Longer holds up other threads of the interpreter, shorter is calls for nothing."""


def crc(data: memoryview, before: int = 0) -> int:
    """The checksum of `data`, or of what had the checksum `before` with `data` behind it."""
    for at in range(0, len(data), STRIDE):
        before = crc64nvme(data[at : at + STRIDE], before)
    return before


def join(parts: Iterable[tuple[int, int]]) -> int:
    """The checksum of the whole, from the (checksum, size in bytes) of parts that lie behind each other."""
    whole = 0
    for part, size in parts:
        whole = combine_crc64nvme(whole, part, size)
    return whole


def digest(tensors: Iterable[tuple[str, TensorSpec, int]]) -> str:
    """SHA-256 over the name, kind and CRC64-NVME of each tensor, in the order of their names."""
    whole = hashlib.sha256()
    for name, kind, value in sorted(tensors, key=lambda item: item[0]):
        shape = ",".join(map(str, kind.shape))
        whole.update(f"{name}\0{kind.dtype}\0{shape}\0{value:016x}\n".encode())
    return whole.hexdigest()


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The same of tensors that are here, such as a `state_dict()`."""
    return digest((name, TensorSpec.of(t), crc(raw(t))) for name, t in tensors.items())


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU; of others, those of a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    dense = plain.cpu().contiguous()
    # Of a single element torch takes any stride for contiguous, and makes no bytes of it.
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]  # an array is a buffer, whatever its stubs say
