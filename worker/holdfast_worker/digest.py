"""Digests of tensors: equal for equal values, wherever the tensor lives and however many ranks hold it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, order=True)
class TensorDigest:
    """A tensor without its values: what is needed to tell whether two are the same."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    """Of the bytes, row by row."""


def digest_tensor(name: str, tensor: Tensor) -> TensorDigest:
    """The digest of a CPU tensor."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    dtype = str(tensor.dtype).removeprefix("torch.")
    sha256 = hashlib.sha256(flat.numpy().data).hexdigest()
    return TensorDigest(name, dtype, tuple(tensor.shape), sha256)


def digest_all(digests: Iterable[TensorDigest]) -> str:
    """One digest over many tensors, in the order of their names."""
    whole = hashlib.sha256()
    for d in sorted(digests):
        shape = ",".join(map(str, d.shape))
        whole.update(f"{d.name}\0{d.dtype}\0{shape}\0{d.sha256}\n".encode())
    return whole.hexdigest()
