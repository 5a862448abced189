"""Shared state has to be equal on all ranks; other state is per-rank, or refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from holdfast_worker.checkpoint.state_consistency import Statement, digest_of, state_statement
from holdfast_worker.checkpoint.state_dict import Encoder
from holdfast_worker.distributed.tensor_layout import Owner
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import Json, ReportKind
from worker.support.run_driver import RunDriver

SCRIPT = str(Path(__file__).parents[1] / "scripts/own_state.py")


def results(driver: RunDriver, ranks: int = 2) -> list[dict[str, Any]]:
    """Final state of each rank."""
    return [json.loads((driver.path / f"result-{rank}").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("mode", ["kept", "apart"])
def test_each_rank_resumes_with_its_own_state(tmp_path: Path, mode: str) -> None:
    uninterrupted, cut = (
        RunDriver(tmp_path / "calm", every="4 steps"),
        RunDriver(tmp_path / "cut", every="4 steps"),
    )

    codes = [
        *uninterrupted.run_ranks(2, SCRIPT, mode, "14"),
        *cut.run_ranks(2, SCRIPT, mode, "7"),
        *cut.run_ranks(2, SCRIPT, mode, "14"),
    ]

    [_, resumed] = cut.reports(ReportKind.TRAINING_STARTED)
    known = results(uninterrupted)
    assert codes == [0] * 6
    assert resumed.body["step"] == 7
    assert results(cut) == known
    assert known[0]["hidden"] != known[1]["hidden"]
    assert (known[0]["moments"] == known[1]["moments"]) is (mode == "kept")


def test_per_rank_state_is_refused_by_another_world_size(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path)
    assert driver.run_ranks(2, SCRIPT, "kept", "5") == [0, 0]

    codes = driver.run_ranks(1, SCRIPT, "kept", "10")

    assert codes == [Exit.USAGE]
    assert "the checkpoint holds hidden for each of 2 ranks, but this run has 1" in driver.log(0)


@pytest.mark.parametrize(
    ("mode", "code", "sentence"),
    [
        ("shared", Exit.USAGE, r'hidden\.h has .*run\.track\(\.\.\., per_rank=\["hidden"\]\)'),
        ("sparse", Exit.USAGE, r"hidden\.h is a tensor of layout torch\.sparse_coo"),
        ("residual", Exit.APART, r"optimizer\.state\[.\]\.residual has different values"),
    ],
)
def test_state_that_becomes_unfit_is_refused_at_the_save(
    tmp_path: Path, mode: str, code: Exit, sentence: str
) -> None:
    driver = RunDriver(tmp_path, every="2 steps")

    codes = driver.run_ranks(2, SCRIPT, mode, "1000000")

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    saved = [r.body["step"] for r in driver.reports(ReportKind.CHECKPOINT_COMMITTED)]
    assert codes == [code, code]
    assert re.match(sentence, str(left.body["detail"]))
    assert "Traceback" not in driver.log(0) + driver.log(1)
    assert all(int(str(step)) <= 3 for step in saved)


def test_values_at_equally_printed_paths_are_both_compared() -> None:
    def digest(value: int) -> str:
        tree: Json = {"a.b": value, "a": {"b": 2}}
        return digest_of(state_statement({"kept": Owner.VERIFIED_REPLICA}, {"kept": tree}, {}, {}))

    assert digest(0) != digest(1)
    assert digest(1) == digest(1)


def test_large_values_are_compared_by_their_digest() -> None:
    """A statement stays in memory until the next save."""

    def stated(last: int) -> Statement:
        array = np.zeros(1_000_000, dtype=np.uint8)
        array[-1] = last
        tree = Encoder().encode(array, "kept")
        return state_statement({"kept": Owner.VERIFIED_REPLICA}, {"kept": tree}, {}, {})

    assert digest_of(stated(0)) != digest_of(stated(1))
    assert digest_of(stated(1)) == digest_of(stated(1))
    assert len(str(stated(0))) < 1000


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("names", "hidden is tracked on rank 0 and not on rank 1"),
        ("values", "hidden.h has different values on rank 0 and rank 1"),
    ],
)
def test_differing_objects_are_refused_at_track(tmp_path: Path, mode: str, sentence: str) -> None:
    driver = RunDriver(tmp_path)

    codes = driver.run_ranks(2, SCRIPT, mode, "5")

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    assert codes == [Exit.USAGE, Exit.USAGE]
    assert str(left.body["detail"]).startswith(sentence)
    assert "Traceback" not in driver.log(0) + driver.log(1)
    assert not driver.reports(ReportKind.TRAINING_STARTED)
