"""CRC64-NVME of memory, and a digest of weights.

S3 computes this checksum itself, so a store that verifies can verify the same number. It detects corruption at more than ten
gigabytes a second, but does not protect against forgery. The weights digest is equal for equal values, wherever the
tensors are and however many ranks hold them.
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
"""Bytes per call. A higher value blocks other Python threads for longer; a lower value adds
calls."""


def crc64(data: memoryview, before: int = 0) -> int:
    """The checksum of `data`, appended to bytes whose checksum is `before`."""
    for at in range(0, len(data), STRIDE):
        before = crc64nvme(data[at : at + STRIDE], before)
    return before


def join_crc64(parts: Iterable[tuple[int, int]]) -> int:
    """The checksum of concatenated parts, from their (checksum, size in bytes) pairs."""
    whole = 0
    for part, size in parts:
        whole = combine_crc64nvme(whole, part, size)
    return whole


def weights_digest(tensors: Iterable[tuple[str, TensorSpec, int]]) -> str:
    """SHA-256 over the name, spec and CRC64-NVME of each tensor, sorted by name."""
    whole = hashlib.sha256()
    for name, kind, value in sorted(tensors, key=lambda item: item[0]):
        shape = ",".join(map(str, kind.shape))
        whole.update(f"{name}\0{kind.dtype}\0{shape}\0{value:016x}\n".encode())
    return whole.hexdigest()


def state_dict_digest(tensors: Mapping[str, Tensor]) -> str:
    """The weights digest of tensors in memory, such as a `state_dict()`."""
    return weights_digest(
        (name, TensorSpec.from_tensor(t), crc64(tensor_bytes(t))) for name, t in tensors.items()
    )


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor; of any other tensor, the bytes of a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    dense = plain.cpu().contiguous()
    # torch calls a single element with any stride contiguous, but cannot view it as bytes.
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]  # an array is a buffer, despite its stubs
