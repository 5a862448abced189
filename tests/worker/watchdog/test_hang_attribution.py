"""Hang attribution, from the positions of the ranks and their inspections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from holdfast_worker.watchdog.hang_attribution import RankInspection, attribute_hang
from holdfast_worker.watchdog.heartbeat import Heartbeat, Phase
from holdfast_worker.watchdog.stall import Stall
from hypothesis import given
from hypothesis import strategies as st

STALL = Stall(904.0, 1200)
DDP = "gloo 0"


def waits(rank: int, agreements: int = 50) -> Heartbeat:
    """A rank that waits in a collective."""
    return Heartbeat(rank=rank, phase=Phase.STEPPING, is_waiting=True, agreements=agreements)


def busy(rank: int, phase: Phase = Phase.STEPPING, agreements: int = 49) -> Heartbeat:
    return Heartbeat(rank=rank, phase=phase, agreements=agreements)


def attribution(
    heartbeats: Sequence[Heartbeat],
    findings: Sequence[RankInspection] = (),
    node_of_rank: Mapping[int, int] | None = None,
    *,
    is_whole: bool = True,
) -> tuple[tuple[int, ...], str]:
    node_of_rank = node_of_rank or {heartbeat.rank: 0 for heartbeat in heartbeats}
    blamed = attribute_hang(STALL, heartbeats, findings, node_of_rank, is_whole=is_whole)
    return blamed.ranks, blamed.sentence


def test_rank_loading_a_batch_is_blamed_if_others_wait() -> None:
    heartbeats = [*(waits(rank) for rank in range(8) if rank != 3), busy(3, Phase.LOADING)]
    place = "DataLoader.__next__ (loader.py:88)"
    node_of_rank = {rank: rank // 2 for rank in range(8)}

    blamed_ranks, sentence = attribution(
        heartbeats, [RankInspection(rank=3, location=place, is_in_torch=True)], node_of_rank
    )

    assert blamed_ranks == (3,)
    assert sentence == (
        "rank 3 on node 1 made no step for 15 min 4 s after step 1200: it was loading a batch, "
        "in DataLoader.__next__ (loader.py:88); the other 7 waited for it"
    )


@pytest.mark.parametrize(
    ("heartbeat", "doing"),
    [
        (Heartbeat(rank=1), "it had not reached Run.start()"),
        (busy(1, Phase.STARTING, 0), "it was starting"),
        (busy(1, Phase.PREPARING, 3), "it was in the script before its loop"),
        (busy(1, Phase.FINISHED, 20), "it had left the loop"),
        (waits(1, 49), "it waited for the others"),
        (busy(1, Phase.SAVING), "it was taking a checkpoint"),
    ],
)
def test_rank_with_fewer_agreements_is_behind(heartbeat: Heartbeat, doing: str) -> None:
    blamed_ranks, sentence = attribution([waits(0), heartbeat])

    assert blamed_ranks == (1,)
    assert sentence.endswith(f"{doing}; the other one waited for it")


def test_rank_in_an_agreement_that_others_left_is_behind() -> None:
    """It was stopped there after its own contribution."""
    blamed_ranks, _ = attribution(
        [busy(0, Phase.LOADING, 50), waits(1, 50), busy(2, agreements=50)]
    )

    assert blamed_ranks == (1,)


def test_loading_rank_is_behind_stepping_ranks_in_the_same_step() -> None:
    """The stepping rank waits in a collective that the heartbeat does not record."""
    blamed_ranks, _ = attribution([busy(0), busy(1, Phase.LOADING), busy(2)])

    assert blamed_ranks == (1,)


def test_stopped_rank_is_blamed_among_ranks_at_one_position() -> None:
    findings = [
        RankInspection(rank=0, location="all_reduce (x.py:1)"),
        RankInspection(rank=1, is_stopped=True),
    ]

    blamed_ranks, sentence = attribution([busy(0), busy(1)], findings)

    assert blamed_ranks == (1,)
    assert "it was in its step, stopped by a signal or a debugger; the other one" in sentence


def test_rank_with_fewer_collectives_is_blamed() -> None:
    """All ranks are in torch, or none is: one is in a kernel, the others wait in loss.item()."""
    findings = [
        RankInspection(
            rank=rank,
            location="x (y.py:1)",
            is_in_torch=rank == 2,
            collectives={DDP: 90 - (rank == 2)},
        )
        for rank in range(4)
    ]

    blamed_ranks, _ = attribution([busy(rank) for rank in range(4)], findings)

    assert blamed_ranks == (2,)


def test_rank_outside_torch_is_blamed_before_ranks_inside() -> None:
    findings = [RankInspection(rank=r, location="x (y.py:1)", is_in_torch=r != 1) for r in range(3)]

    blamed_ranks, _ = attribution([busy(rank) for rank in range(3)], findings)

    assert blamed_ranks == (1,)


def test_majority_is_not_blamed_for_a_different_position() -> None:
    """Without a record, the rank in torch may be in a hanging kernel that the others wait for."""
    findings = [RankInspection(rank=r, location="x (y.py:1)", is_in_torch=r == 1) for r in range(3)]

    blamed_ranks, _ = attribution([busy(rank) for rank in range(3)], findings)

    assert blamed_ranks == (0, 1, 2)


def test_rank_without_a_collective_record_is_blamed() -> None:
    """The thread that responds needs the GIL, which another thread holds."""
    findings = [
        RankInspection(rank=rank, location="x (y.py:1)", collectives={} if rank == 2 else {DDP: 90})
        for rank in range(4)
    ]

    blamed_ranks, _ = attribution([busy(rank) for rank in range(4)], findings)

    assert blamed_ranks == (2,)


def test_indistinguishable_ranks_are_all_named() -> None:
    findings = [
        RankInspection(rank=r, location=f"f{r} (y.py:{r})", is_in_torch=True) for r in (0, 1)
    ]

    blamed_ranks, sentence = attribution([busy(0), busy(1)], findings)

    assert blamed_ranks == (0, 1)
    assert sentence == (
        "no rank made a step for 15 min 4 s after step 1200: rank 0 was in its step, in f0 (y.py:0), "
        "rank 1 was in its step, in f1 (y.py:1)"
    )


def test_several_ranks_behind_are_named_with_their_node() -> None:
    heartbeats = [waits(0), waits(1), busy(2, Phase.LOADING), busy(3, Phase.LOADING)]

    blamed_ranks, sentence = attribution(heartbeats, node_of_rank={0: 0, 1: 0, 2: 1, 3: 1})

    assert blamed_ranks == (2, 3)
    assert sentence.startswith("ranks 2 and 3 on node 1 made no step for 15 min 4 s after step")
    assert sentence.endswith("; the other 2 waited for them")


def test_single_rank_is_described_without_waiting_ranks() -> None:
    _, sentence = attribution([busy(0)], [RankInspection(rank=0, location="forward (net.py:7)")])

    assert sentence == (
        "rank 0 made no step for 15 min 4 s after step 1200: it was in its step, in forward (net.py:7)"
    )


def test_partial_view_of_waiting_ranks_is_stated() -> None:
    _, sentence = attribution([waits(0), waits(1)], node_of_rank={0: 0, 1: 0}, is_whole=False)

    assert sentence.endswith("; the state of ranks on other nodes is unknown")


@pytest.mark.parametrize(
    ("for_s", "text"),
    [(3.2, "3 s"), (59.6, "1 min 0 s"), (904, "15 min 4 s"), (7500, "2 h 5 min")],
)
def test_durations_are_formatted_in_two_units(for_s: float, text: str) -> None:
    result = attribute_hang(Stall(for_s, 1), [busy(0)], [], {0: 0}, is_whole=True)

    assert f"no step for {text} after" in result.sentence


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.sampled_from(Phase), st.integers(0, 3), st.booleans(), st.booleans()
        ),
        min_size=1,
        max_size=8,
    )
)
def test_blamed_ranks_are_always_the_least_advanced(
    drawn: list[tuple[bool, Phase, int, bool, bool]],
) -> None:
    heartbeats = [
        Heartbeat(rank=rank, is_waiting=waiting, phase=phase, agreements=agreements)
        for rank, (waiting, phase, agreements, _, _) in enumerate(drawn)
    ]
    findings = [
        RankInspection(rank=rank, is_stopped=stopped, location="x (y.py:1)", is_in_torch=in_torch)
        for rank, (_, _, _, stopped, in_torch) in enumerate(drawn)
    ]

    blamed_ranks, sentence = attribution(heartbeats, findings)

    assert blamed_ranks
    assert {heartbeats[rank].position for rank in blamed_ranks} == {
        min(p.position for p in heartbeats)
    }
    assert " made no step for " in sentence or "no rank made a step for " in sentence
