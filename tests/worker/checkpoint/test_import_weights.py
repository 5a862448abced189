"""Start from weights of other tools, which are read without execution of pickled code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_worker.checkpoint.import_weights import UnreadableWeights, begin_from
from holdfast_worker.checkpoint.stateful import StateMismatch, TrackedState
from holdfast_worker.protocol.environment import Exit
from safetensors.torch import save_file
from torch import Tensor, nn
from worker.support.run_driver import RunDriver


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture
def fresh() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: weights,
        lambda weights: {"model": weights, "epoch": 7},
        lambda weights: {"model_state_dict": weights, "loss": 0.5},
        lambda weights: {"state_dict": weights},
        lambda weights: {f"module.{name}": value for name, value in weights.items()},
        lambda weights: {"model": {f"module._orig_mod.{k}": v for k, v in weights.items()}},
    ],
)
def test_weights_are_found_in_common_layouts(tmp_path: Path, fresh: nn.Module, wrap: Any) -> None:
    model, _ = trained()
    torch.save(wrap(state(model)), tmp_path / "theirs.pt")

    begin_from(tmp_path / "theirs.pt", TrackedState({"model": fresh}))

    assert same(state(fresh), state(model))


def test_safetensors_weights_are_read(tmp_path: Path, fresh: nn.Module) -> None:
    model, _ = trained()
    save_file(state(model), tmp_path / "theirs.safetensors")

    begin_from(tmp_path / "theirs.safetensors", TrackedState({"model": fresh}))

    assert same(state(fresh), state(model))


def test_optimizer_state_is_imported(tmp_path: Path, fresh: nn.Module) -> None:
    model, optimizer = trained()
    both = {"model": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(both, tmp_path / "theirs.pt")
    imported = torch.optim.AdamW(fresh.parameters(), lr=0.5)

    begin_from(tmp_path / "theirs.pt", TrackedState({"model": fresh, "optimizer": imported}))

    assert imported.param_groups[0]["lr"] == 0.1
    assert torch.equal(
        imported.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )


class MaliciousPickle:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('it ran')",))


def test_pickled_code_is_not_executed(tmp_path: Path, fresh: nn.Module) -> None:
    torch.save({"model": MaliciousPickle()}, tmp_path / "theirs.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(MaliciousPickle(), protocol=2))

    for name in ("theirs.pt", "bare.pt"):
        with pytest.raises(UnreadableWeights, match="would run code"):
            begin_from(tmp_path / name, TrackedState({"model": fresh}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pt", None, "No such file"),
        ("empty.pt", b"", "not a readable checkpoint"),
        ("text.safetensors", b"hello, this is no header", "not a readable checkpoint"),
        ("half.safetensors", b"\x10", "not a readable checkpoint"),
    ],
)
def test_unreadable_weights_file_is_refused(
    tmp_path: Path, fresh: nn.Module, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(UnreadableWeights, match=message):
        begin_from(tmp_path / name, TrackedState({"model": fresh}))


def test_truncated_weights_file_is_refused(tmp_path: Path, fresh: nn.Module) -> None:
    torch.save(state(fresh), tmp_path / "theirs.pt")
    whole = (tmp_path / "theirs.pt").read_bytes()
    (tmp_path / "theirs.pt").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(UnreadableWeights, match=r"theirs\.pt"):
        begin_from(tmp_path / "theirs.pt", TrackedState({"model": fresh}))


def test_dcp_folder_is_refused_with_conversion_advice(tmp_path: Path, fresh: nn.Module) -> None:
    with pytest.raises(UnreadableWeights, match="dcp_to_torch_save"):
        begin_from(tmp_path, TrackedState({"model": fresh}))


def test_file_without_the_tracked_state_names_the_missing_one(
    tmp_path: Path, fresh: nn.Module
) -> None:
    torch.save({"weights": 1}, tmp_path / "theirs.pt")

    with pytest.raises(UnreadableWeights, match="has no model"):
        begin_from(tmp_path / "theirs.pt", TrackedState({"model": fresh}))


def test_weights_of_another_model_are_refused(tmp_path: Path, fresh: nn.Module) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "theirs.pt")

    with pytest.raises(StateMismatch, match="does not fit"):
        begin_from(tmp_path / "theirs.pt", TrackedState({"model": fresh}))


SCRIPT = """
import sys, torch
from holdfast_worker import Run
from torch import nn
run = Run.start()
model = run.wrap(nn.Linear(3, 2))
run.begin_from(sys.argv[1], model=model)
run.track(model=model)
inner = getattr(model, "module", model)
torch.save(inner.state_dict(), f"{sys.argv[2]}-{run.rank}")
for _ in run.steps([1, 2], total=2):
    with torch.no_grad():
        inner.weight.add_(1)
"""


def test_run_starts_from_a_file_then_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    theirs = nn.Linear(3, 2).state_dict()
    torch.save(theirs, tmp_path / "theirs.pt")
    driver = RunDriver(tmp_path)
    script, file = str(tmp_path / "script.py"), str(tmp_path / "theirs.pt")

    first = driver.run_ranks(2, script, file, str(tmp_path / "first"))
    second = driver.run_ranks(2, script, file, str(tmp_path / "second"))
    refused = driver.run_ranks(2, script, str(tmp_path / "none.pt"), str(tmp_path / "third"))

    begun = [torch.load(tmp_path / f"{run}-{r}") for run in ("first", "second") for r in (0, 1)]
    assert first == second == [0, 0]
    assert same(begun[0], theirs)
    assert same(begun[1], theirs)
    assert torch.equal(begun[2]["weight"], theirs["weight"] + 1 + 1)
    assert same(begun[2], begun[3])
    assert refused == [Exit.USAGE, Exit.USAGE]
