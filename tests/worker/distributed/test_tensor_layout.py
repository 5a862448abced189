"""Division of a state among ranks, and the layout of its bytes."""

from __future__ import annotations

from itertools import pairwise, product

import torch
from holdfast_worker.checkpoint.coverage import is_tiled
from holdfast_worker.distributed.tensor_layout import (
    DTYPES,
    Block,
    ElementRange,
    LocalTensor,
    Owner,
    TensorSpec,
    cut_stream,
    divide_stream,
    region,
)
from hypothesis import given
from hypothesis import strategies as st

KINDS = st.builds(
    TensorSpec,
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
STATES = st.dictionaries(
    st.text("abc.", min_size=1, max_size=6),
    st.tuples(KINDS, st.sampled_from([Owner.REPLICATED, Owner.RANK_ZERO])),
    max_size=12,
).map(lambda raw: {name: LocalTensor.whole(kind, holder) for name, (kind, holder) in raw.items()})


@given(STATES, st.integers(1, 9))
def test_every_element_is_written_once_and_aligned(
    held: dict[str, LocalTensor], ranks: int
) -> None:
    written: dict[str, list[ElementRange]] = {name: [] for name in held}
    for rank in range(ranks):
        end = 0
        for piece in divide_stream(held, rank, ranks):
            assert piece.at == end, "a stream has no holes"
            assert piece.at % held[piece.name].spec.itemsize == 0
            assert isinstance(piece.region, ElementRange)
            written[piece.name].append(piece.region)
            end = piece.end

    for name, runs in written.items():
        ordered = sorted(runs, key=lambda run: run.start)
        assert sum(run.count for run in ordered) == held[name].spec.count
        assert all(left.stop == right.start for left, right in pairwise(ordered))


@given(st.integers(2, 8), st.integers(0, 3000))
def test_rank_0_gets_less_shared_data_for_its_exclusive_data(ranks: int, alone: int) -> None:
    held = {
        "shared": LocalTensor.whole(TensorSpec("U8", (100_000,)), Owner.REPLICATED),
        "alone": LocalTensor.whole(TensorSpec("U8", (alone,)), Owner.RANK_ZERO),
    }

    shares = [sum(p.size for p in divide_stream(held, rank, ranks)) for rank in range(ranks)]

    assert sum(shares) == 100_000 + alone
    assert max(shares) - min(shares) <= 2 * 64


def test_rank_0_exclusive_data_may_exceed_an_equal_share() -> None:
    held = {
        "shared": LocalTensor.whole(TensorSpec("U8", (640,)), Owner.REPLICATED),
        "alone": LocalTensor.whole(TensorSpec("U8", (10_000,)), Owner.RANK_ZERO),
    }

    shares = [sum(p.size for p in divide_stream(held, rank, 3)) for rank in range(3)]

    assert shares == [10_000, 320, 320]


@given(st.data())
def test_block_is_contiguous_only_if_its_elements_are(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    offsets = [data.draw(st.integers(0, n - 1)) for n in shape]
    sizes = [data.draw(st.integers(1, n - o)) for n, o in zip(shape, offsets, strict=True)]
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    block = numbers[Block(tuple(offsets), tuple(sizes)).slices].reshape(-1).tolist()

    found = region(shape, offsets, sizes)

    if isinstance(found, ElementRange):
        assert block == list(range(found.start, found.stop))
    else:
        assert block != list(range(block[0], block[0] + len(block)))


def test_empty_block_of_a_tensor_is_an_empty_run() -> None:
    assert region((4, 4), (0, 0), (0, 4)) == ElementRange(0, 0)


@given(STATES, st.integers(1, 40))
def test_each_chunk_belongs_to_one_piece_and_one_part(
    held: dict[str, LocalTensor], part_bytes: int
) -> None:
    pieces = divide_stream(held, 0, 1)

    stretches = list(cut_stream(pieces, part_bytes))

    assert sum(stop - start for start, stop in stretches) == sum(p.size for p in pieces)
    for start, stop in stretches:
        assert start // part_bytes == (stop - 1) // part_bytes
        assert any(p.at <= start and stop <= p.end for p in pieces)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=3),
    st.data(),
)
def test_only_complete_shards_tile_a_tensor(
    cut: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Dimensions are cut as by `torch.chunk`; then a shard is removed, duplicated or moved."""
    shape = [length for length, _ in cut]
    chunks = [
        [(at, min(step, length - at)) for at in range(0, length, step)]
        for length, many in cut
        for step in (-(-length // many),)
    ]
    shards = [
        region(shape, [at for at, _ in block], [size for _, size in block])
        for block in product(*chunks)
    ]
    one = data.draw(st.sampled_from(shards))
    rest = [shard for shard in shards if shard != one]
    moved = (
        ElementRange(one.start + 1, one.stop + 1)
        if isinstance(one, ElementRange)
        else Block((one.offsets[0] + 1, *one.offsets[1:]), one.sizes)
    )

    assert is_tiled(shape, data.draw(st.permutations(shards)))
    assert not is_tiled(shape, rest)
    assert not is_tiled(shape, [*shards, one])
    assert not is_tiled(shape, [*rest, moved])


def test_scalar_and_empty_tensors_are_tiled() -> None:
    assert is_tiled((), [ElementRange(0, 1)])
    assert is_tiled((0, 3), [])
    assert is_tiled((0,), [ElementRange(0, 0)])
    assert not is_tiled((), [])
    assert not is_tiled((4, 4), [ElementRange(0, 3), Block((1, 0), (3, 2)), Block((0, 2), (4, 2))])
