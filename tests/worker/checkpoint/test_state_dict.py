"""State trees survive a round trip through JSON and tensors, or are refused with the path."""

# ruff: noqa: NPY002 - the global generators are the point

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from holdfast_worker import rng
from holdfast_worker.checkpoint.state_dict import Encoder, UnserializableState, decode, tensor_paths
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
)
KEYS = st.integers() | st.text() | st.booleans() | st.tuples(st.integers(), st.text())
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
        | st.sets(KEYS)
        | st.frozensets(KEYS)
    ),
    max_leaves=12,
)


def through_storage(value: object) -> Any:
    """`value` after a round trip through a checkpoint."""
    encoder = Encoder()
    text = json.dumps(encoder.encode(value, "it"), allow_nan=False)
    copies = {
        name: tensor.resolve_conj().resolve_neg().contiguous().clone()
        for name, tensor in encoder.tensors.items()
    }
    return decode(json.loads(text), safetensors.torch.load(safetensors.torch.save(copies)))


def same(a: Any, b: Any) -> bool:  # noqa: PLR0911 - one line per kind
    """Whether two trees are equal in every type and bit. NaN equals NaN; -0.0 differs from 0.0."""
    if type(a) is not type(b):
        return False
    match a:
        case Tensor():
            return a.dtype == b.dtype and a.shape == b.shape and a.equal(b)
        case np.ndarray() | np.generic():
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        case float():
            return a.hex() == b.hex() if not math.isnan(a) else math.isnan(b)
        case complex():
            return same(a.real, b.real) and same(a.imag, b.imag)
        case dict():
            pairs = zip(a.items(), b.items(), strict=len(a) == len(b))
            return len(a) == len(b) and all(same(x, y) for x, y in pairs)
        case list() | tuple() | deque():
            return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
        case _:
            return bool(a == b)


@given(TREES)
def test_every_tree_survives_a_round_trip(value: object) -> None:
    assert same(through_storage(value), value)


VALUES: dict[str, object] = {
    "0-dim": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "two empty": [torch.zeros(0), torch.zeros(0, 2)],
    "transposed": torch.arange(12).reshape(3, 4).T,
    "channels last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "bfloat16": torch.rand(5).bfloat16(),
    "float8": torch.ones(5).to(torch.float8_e4m3fn).view(torch.uint8),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "strided": torch.arange(10)[::3],
    "expanded": torch.ones(1).expand(7),
    "keys of different types": {0: torch.ones(1), "0": torch.zeros(1)},
    "reserved tag": {"$": "a key that we use ourselves"},
    "big-endian array": np.arange(6, dtype=">i2").reshape(2, 3),
    "numpy scalar": np.float32(0.1),
    "0-dim array": np.array(7),
    "numpy NaN": np.float64("nan"),
    "counter": Counter({3: 2, 5: 1}),
    "short deque": deque([1, 2], maxlen=2),
    "dtype": torch.float16,
    "device": torch.device("cpu"),
    "size": torch.Size([2, 3]),
    "state of random": random.getstate(),
    "state of numpy": np.random.get_state(),
    "state of torch": torch.get_rng_state(),
}


@pytest.mark.parametrize("name", VALUES)
def test_state_values_survive_a_round_trip(name: str) -> None:
    assert same(through_storage(VALUES[name]), VALUES[name])


def test_tied_tensors_are_saved_once_and_restored_tied() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    encoder = Encoder()

    raw = encoder.encode(model.state_dict(), "model")
    back = decode(raw, encoder.tensors)

    assert list(encoder.tensors) == ["model.0.weight"]
    assert list(tensor_paths(raw)) == [
        ("0.weight", "model.0.weight"),
        ("1.weight", "model.0.weight"),
    ]
    assert back["0.weight"] is back["1.weight"]


def test_conjugate_is_distinct_from_its_tensor() -> None:
    whole = torch.tensor([1 + 2j])

    plain, conjugate, negative = through_storage([whole, whole.conj(), whole.conj().imag])

    assert plain.tolist() == [1 + 2j]
    assert conjugate.tolist() == [1 - 2j]
    assert negative.tolist() == [-2]


def test_adjacent_views_are_distinct() -> None:
    whole = torch.arange(6.0)

    first, second = through_storage([whole[:3], whole[3:]])

    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [3, 4, 5]


def test_module_versions_are_restored_with_the_state() -> None:
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()

    back = through_storage(state)

    assert back._metadata == state._metadata


def test_generators_resume_exactly() -> None:
    rng.seed(5)
    states = rng.capture()
    drawn = (random.random(), np.random.rand(), torch.rand(3).tolist())

    rng.restore(through_storage(states))

    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == drawn


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"lr_lambdas": [lambda step: step]}, "scheduler.lr_lambdas[0] is a builtins.function"),
        ({"x": {3: object()}}, "scheduler.x[3] is a builtins.object"),
        ([torch.ones(2).to_sparse()], "scheduler[0] is a tensor of layout torch.sparse_coo"),
        (torch.ones(2, device="meta"), "scheduler is a tensor without data"),
        (torch.empty(2, dtype=torch.uint3), "scheduler is a tensor of torch.uint3"),
        (
            [nn.UninitializedParameter()],
            "scheduler[0] is a parameter that has no shape before the first forward",
        ),
        (np.array([object()]), "scheduler is an array of objects"),
    ],
)
def test_unserializable_value_is_refused_with_its_path(value: object, sentence: str) -> None:
    with pytest.raises(UnserializableState) as refusal:
        Encoder().encode(value, "scheduler")

    assert str(refusal.value) == f"{sentence}, which a checkpoint cannot hold"


def test_nested_tensor_is_refused_with_its_path() -> None:
    # No parameter of the test above: the first nested tensor of a process takes half a second.
    value = torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)

    with pytest.raises(
        UnserializableState, match="scheduler is a nested tensor, which a checkpoint"
    ):
        Encoder().encode(value, "scheduler")
