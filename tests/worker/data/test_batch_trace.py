"""The batch trace, which `holdfast prove` compares, is reproducible bit for bit."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from holdfast_worker import rng
from holdfast_worker.config import Config
from holdfast_worker.data.batch_trace import batch_digest, trace_batches
from holdfast_worker.protocol.environment import BATCH_TRACE_PREFIX, Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from worker.support.run_driver import DDP_SCRIPT, RunDriver


@dataclass
class Pair:
    """A batch of a custom class."""

    x: torch.Tensor
    name: str


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        ([1, [2, 3]], [1, 2, [3]]),
        ({"x": torch.ones(1)}, {"y": torch.ones(1)}),
        (np.arange(5000), np.arange(5000)[::-1]),
        (Pair(torch.zeros(4000), "a"), Pair(torch.arange(4000), "a")),
    ],
)
def test_batch_digests_differ_by_content_type_and_structure(one: Any, other: Any) -> None:
    assert batch_digest(one) != batch_digest(other)


def test_equal_batches_have_equal_digests_in_any_layout() -> None:
    x = torch.arange(12.0).reshape(3, 4)

    assert batch_digest((x, "a")) == batch_digest((x.clone(), "a"))
    assert batch_digest(x.T) == batch_digest(x.T.contiguous())
    assert batch_digest(Pair(x, "a")) == batch_digest(Pair(x.clone(), "a"))


def test_batches_are_not_read_unless_tracing_is_enabled(capsys: pytest.CaptureFixture[str]) -> None:
    batches = [object()]

    given = list(trace_batches(batches, Config.read({}), 0, lambda: dict))

    assert given == batches
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("total", "variable", "limit"),
    [(None, "", None), (50, "", 50), (50, "20", 20), (None, "20", 20)],
)
def test_environment_can_only_shorten_a_run(
    total: int | None, variable: str, limit: int | None
) -> None:
    config = Config.read({"HOLDFAST_MAX_STEPS": variable})

    assert config.limit_steps(total) == limit


def test_cublas_setting_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    was = torch.are_deterministic_algorithms_enabled()
    try:
        rng.seed_rank(Config.read({}), deterministic=False)
        untouched = torch.are_deterministic_algorithms_enabled()
        rng.seed_rank(Config.read({"HOLDFAST_DETERMINISTIC": "1"}), deterministic=False)
        first = os.environ["CUBLAS_WORKSPACE_CONFIG"]
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        rng.seed_rank(Config.read({}), deterministic=True)

        assert (untouched, first) == (was, ":4096:8")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    finally:
        torch.use_deterministic_algorithms(was)


def test_equal_seeds_give_equal_batches_and_losses(tmp_path: Path) -> None:
    variable = {
        "HOLDFAST_SEED": "7",
        "HOLDFAST_DETERMINISTIC": "1",
        "HOLDFAST_MAX_STEPS": "6",
        "HOLDFAST_WITNESS": "1",
    }

    def trace(name: str) -> list[dict[str, Any]]:
        """The batch trace of a run with one rank."""
        (tmp_path / name).mkdir()
        driver = RunDriver(tmp_path / name, extra=variable)
        assert driver.run_ranks(1, DDP_SCRIPT, "40") == [Exit.DONE]
        assert driver.reports(ReportKind.WORKER_LEFT)[0].body["step"] == 6
        log = RunDir(driver.run_dir).log_file(0).read_text()
        lines = [
            line.partition(BATCH_TRACE_PREFIX)[2]
            for line in log.splitlines()
            if BATCH_TRACE_PREFIX in line
        ]
        return [json.loads(line) for line in lines]

    once, again = trace("once"), trace("again")

    assert once == again
    assert [line["step"] for line in once] == [0, 1, 2, 3, 4, 5]
    assert len({line["batch"] for line in once}) == 6
    assert [set(line["logged"]) for line in once] == [set(), *[{"loss"}] * 5]
