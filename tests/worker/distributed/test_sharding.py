"""Sharded state is saved and read by any number of ranks, with FSDP and DDP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from holdfast_worker.protocol.reports import ReportKind
from worker.support.run_driver import RunDriver

SCRIPT = str(Path(__file__).parents[1] / "scripts/fsdp.py")
TOTAL = "20"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDriver]:
    """Runs of two ranks with saved state, sharded and replicated."""
    drivers = {kind: RunDriver(tmp_path_factory.mktemp(kind)) for kind in ("fsdp", "ddp")}
    for kind, driver in drivers.items():
        assert driver.run_ranks(2, SCRIPT, kind, TOTAL) == [0, 0]
    return drivers


@pytest.mark.parametrize(
    ("before", "now", "ranks"),
    [
        ("fsdp", "fsdp", 2),
        ("fsdp", "fsdp", 1),
        pytest.param("fsdp", "fsdp", 3, marks=pytest.mark.full),
        ("fsdp", "ddp", 2),
        pytest.param("fsdp", "ddp", 4, marks=pytest.mark.full),
        ("ddp", "fsdp", 2),
        pytest.param("ddp", "fsdp", 3, marks=pytest.mark.full),
        ("ddp", "ddp", 4),
    ],
)
def test_state_is_equal_in_another_world(
    saved: dict[str, RunDriver], tmp_path: Path, before: str, now: str, ranks: int
) -> None:
    source = saved[before]
    shutil.copytree(source.path / "store", tmp_path / "store")
    driver = RunDriver(tmp_path, attempt=source.attempt)

    codes = driver.run_ranks(ranks, SCRIPT, now, TOTAL)

    [started] = driver.reports(ReportKind.TRAINING_STARTED)
    parsed, known = json.loads(driver.result), json.loads(source.result)
    assert codes == [0] * ranks
    assert started.body["step"] == int(TOTAL)
    assert parsed["weights"] == known["weights"]
    assert parsed["moments"] == pytest.approx(known["moments"], rel=1e-12)


def test_preempted_sharded_run_resumes_bit_for_bit(
    saved: dict[str, RunDriver], tmp_path: Path
) -> None:
    driver = RunDriver(tmp_path)

    first = driver.run_ranks(2, SCRIPT, "fsdp", "10")
    second = driver.run_ranks(2, SCRIPT, "fsdp", TOTAL)

    assert first == second == [0, 0]
    assert json.loads(driver.result)["weights"] == json.loads(saved["fsdp"].result)["weights"]


def test_each_rank_writes_only_its_own_shards(saved: dict[str, RunDriver]) -> None:
    [*_, newest] = sorted((saved["fsdp"].path / "store" / "lesson").glob("step-20-*"))

    sizes = [sum(f.stat().st_size for f in (newest / f"rank-{r}").iterdir()) for r in (0, 1)]

    # 3 x (33 x 5 + 33 + 33 + 1) numbers of 4 bytes: each weight and its two moments; and 4 steps.
    assert sum(sizes) == 3 * 232 * 4 + 4 * 4
    assert max(sizes) < 0.6 * sum(sizes)
