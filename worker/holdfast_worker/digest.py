"""The digest of weights: equal for equal values, wherever the tensors live and however many ranks hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from holdfast_worker.crc import crc
from holdfast_worker.layout import Kind


def digest(tensors: Iterable[tuple[str, Kind, int]]) -> str:
    """SHA-256 over the name, kind and CRC64-NVME of each tensor, in the order of their names."""
    whole = hashlib.sha256()
    for name, kind, value in sorted(tensors, key=lambda item: item[0]):
        shape = ",".join(map(str, kind.shape))
        whole.update(f"{name}\0{kind.dtype}\0{shape}\0{value:016x}\n".encode())
    return whole.hexdigest()


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The same of tensors that are here, such as a `state_dict()`."""
    return digest((name, Kind.of(t), crc(raw(t))) for name, t in tensors.items())


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU; of others, those of a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    dense = plain.cpu().contiguous()
    # Of a single element torch takes any stride for contiguous, and makes no bytes of it.
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]  # an array is a buffer, whatever its stubs say
