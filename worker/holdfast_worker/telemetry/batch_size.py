"""Samples and tokens of a batch, from the shape of its first tensor or as the script says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from torch import Tensor

B = TypeVar("B")

TokenCount: TypeAlias = int | Callable[[B], int]
"""Tokens of a batch of one rank: a number, or a function of the batch."""

IDS: Final = "input_ids"
"""Key of the tokens in batches of Hugging Face data sets."""
_TOKEN_DIMENSIONS: Final = 2
"""(sequences, tokens)."""


def check_token_count(tokens: TokenCount[Any] | None) -> None:
    """Check the argument of `Run.steps`.

    Raises:
        ValueError: it is neither a number of tokens nor a function.
    """
    is_number = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0
    if tokens is not None and not is_number and not callable(tokens):
        raise ValueError(
            f"steps(tokens={tokens!r}): give the tokens of a batch of one rank as a number, or a function that counts them"
        )


def batch_size(batch: object, tokens: TokenCount[Any] | None = None) -> tuple[int, int]:
    """Samples and tokens of a batch; 0 where its shape does not show them.

    Samples are the first dimension of its first tensor. Tokens are all numbers of that tensor if they are integers in two
    dimensions, (sequences, tokens). `tokens` takes precedence.

    Raises:
        ValueError: the function `tokens` returned no number.
    """
    first = _first_tensor(batch)
    samples = 0 if first is None else first.shape[0]
    if callable(tokens):
        counted = tokens(batch)
        if not isinstance(counted, int) or counted < 0:
            raise ValueError(
                f"the function in steps(tokens=...) returned {counted!r}; return the number of tokens, such as batch.numel()"
            )
        return samples, counted
    if tokens is not None:
        return samples, tokens
    return samples, 0 if first is None or not _has_tokens(first) else first.numel()


def _has_tokens(tensor: Tensor) -> bool:
    kind = tensor.dtype
    return tensor.dim() == _TOKEN_DIMENSIONS and not (
        kind.is_floating_point or kind.is_complex or kind.itemsize < 2  # Bytes are pixels or masks.
    )


def _first_tensor(batch: object) -> Tensor | None:
    """The first tensor with a dimension, in the order of the batch; `input_ids` if it has them."""
    if isinstance(batch, Tensor):
        return batch if batch.dim() else None
    parts: Iterable[object] = ()
    if isinstance(batch, Mapping):
        parts = (batch[IDS],) if IDS in batch else batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    for part in parts:
        found = _first_tensor(part)
        if found is not None:
            return found
    return None
