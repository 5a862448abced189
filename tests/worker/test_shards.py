"""Sharded state is saved and read by any number of ranks, sharded or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from holdfast_worker.protocol.reports import ReportKind

from worker.stage import Stage

SCRIPT = str(Path(__file__).with_name("shards.py"))
TOTAL = "20"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    """What two ranks saved, sharded and not."""
    stages = {kind: Stage(tmp_path_factory.mktemp(kind)) for kind in ("fsdp", "ddp")}
    for kind, stage in stages.items():
        assert stage.run_ranks(2, SCRIPT, kind, TOTAL) == [0, 0]
    return stages


@pytest.mark.parametrize(
    ("before", "now", "ranks"),
    [
        ("fsdp", "fsdp", 2),
        ("fsdp", "fsdp", 1),
        ("fsdp", "fsdp", 3),
        ("fsdp", "ddp", 2),
        ("fsdp", "ddp", 4),
        ("ddp", "fsdp", 2),
        ("ddp", "fsdp", 3),
        ("ddp", "ddp", 4),
    ],
)
def test_another_world_reads_the_same_state(
    saved: dict[str, Stage], tmp_path: Path, before: str, now: str, ranks: int
) -> None:
    source = saved[before]
    shutil.copytree(source.path / "store", tmp_path / "store")
    stage = Stage(tmp_path, attempt=source.attempt)

    codes = stage.run_ranks(ranks, SCRIPT, now, TOTAL)

    [started] = stage.reports(ReportKind.TRAINING_STARTED)
    told, known = json.loads(stage.result), json.loads(source.result)
    assert codes == [0] * ranks
    assert started.body["step"] == int(TOTAL)
    assert told["weights"] == known["weights"]
    assert told["moments"] == pytest.approx(known["moments"], rel=1e-12)


def test_a_sharded_run_that_was_stopped_goes_on_bit_for_bit(
    saved: dict[str, Stage], tmp_path: Path
) -> None:
    stage = Stage(tmp_path)

    first = stage.run_ranks(2, SCRIPT, "fsdp", "10")
    second = stage.run_ranks(2, SCRIPT, "fsdp", TOTAL)

    assert first == second == [0, 0]
    assert json.loads(stage.result)["weights"] == json.loads(saved["fsdp"].result)["weights"]


def test_each_rank_writes_its_shards_alone(saved: dict[str, Stage]) -> None:
    [*_, newest] = sorted((saved["fsdp"].path / "store" / "lesson").glob("step-20-*"))

    sizes = [sum(f.stat().st_size for f in (newest / f"rank-{r}").iterdir()) for r in (0, 1)]

    # 3 x (33 x 5 + 33 + 33 + 1) numbers of 4 bytes: weights and two moments of each; and 4 steps.
    assert sum(sizes) == 3 * 232 * 4 + 4 * 4
    assert max(sizes) < 0.6 * sum(sizes)
