"""One trial: a candidate saves and restores in this process, which does nothing else.

python -m checkpoint.trial '{"candidate": "ours", "size": "0.5", "port": 1234, "saves": 3, "restores": 1}'
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from fake_s3 import FakeS3

from checkpoint.candidates import BY_NAME
from checkpoint.process_stats import Reading, peak_bytes, reset_peak, resident_bytes
from checkpoint.state import SHAPES, State

BUCKET = "bench"


class CandidateProtocol(Protocol):
    """The interface of a candidate. `number` is the number of a checkpoint."""

    def save(self, number: int) -> None:
        """Save; return when the training may continue."""

    def settle(self) -> None:
        """Wait until the checkpoint is durable."""

    @property
    def is_durable(self) -> bool:
        """Whether the checkpoint is durable."""

    def restore(self, number: int) -> None:
        """Restore the saved state."""


@dataclass
class Trial:
    """Parameters of a trial."""

    candidate: str
    size: str
    port: int
    saves: int = 3
    """Number of saves after the first one."""
    restores: int = 1
    device: str = "cpu"


@dataclass
class Result:
    """The measurements of a trial; the first save allocates all memory."""

    size_bytes: int = 0
    stall_s: list[float] = field(default_factory=list)
    durable_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    extra_bytes: list[int] = field(default_factory=list)
    tidy_cpu_s: list[float] = field(default_factory=list)
    """CPU time to delete the previous checkpoint, if the candidate does that."""
    restore_s: list[float] = field(default_factory=list)
    restore_cpu_s: list[float] = field(default_factory=list)
    restore_extra_bytes: list[int] = field(default_factory=list)


def open_candidate(
    name: str, state: State, port: int, pace_s: float | None = None
) -> CandidateProtocol:
    """Return a candidate that is ready to save."""
    url = f"s3://{BUCKET}/runs"
    match name.split("-"):
        case ["bare", *more]:
            from checkpoint.hardware_limits import HardwareLimit

            return HardwareLimit(state, port, BUCKET, threads=2 if more else 1)
        case ["ours", *more]:
            from checkpoint.holdfast_candidate import Holdfast

            return Holdfast(state.objects(), url.replace("s3", *more) if more else url, pace_s)
        case ["plain", *more]:
            from checkpoint.torch_save import TorchSave

            return TorchSave(state, BUCKET, in_thread=bool(more))
        case [storage, *more]:
            from checkpoint.dcp import Dcp

            threads = 4 if "best" in more else 1
            return Dcp(state, url, storage=storage, threads=threads, cached=bool(more))
    raise ValueError(name)


def run_trial(trial: Trial) -> Result:
    """Run a trial."""
    state = State(SHAPES[trial.size], trial.device)
    s3 = FakeS3(trial.port)
    result = Result(size_bytes=state.size_bytes)
    candidate = open_candidate(trial.candidate, state, trial.port)
    expected = state.print()
    base_bytes = resident_bytes()
    prepare = getattr(candidate, "prepare", None)
    if prepare:
        prepare()
    for number in range(trial.saves + 1):
        _save(candidate, number, base_bytes, result)
        delete_previous = getattr(candidate, "delete_previous", None)
        if delete_previous:
            before = Reading.now()
            delete_previous()
            result.tidy_cpu_s.append(Reading.now().cpu_s - before.cpu_s)
        elif number < trial.saves:
            s3.clear()
    for _ in range(trial.restores if BY_NAME[trial.candidate].restores else 0):
        state.wipe()
        _restore(candidate, trial.saves, result)
        assert BY_NAME[trial.candidate].is_ceiling or state.print() == expected, (
            "not what was saved"
        )
    return result


def _save(candidate: CandidateProtocol, number: int, base_bytes: int, result: Result) -> None:
    reset_peak()
    began = Reading.now()
    candidate.save(number)
    stalled_s = Reading.now().at_s - began.at_s
    candidate.settle()
    ended = Reading.now()
    result.stall_s.append(stalled_s)
    result.durable_s.append(ended.at_s - began.at_s)
    result.cpu_s.append(ended.cpu_s - began.cpu_s)
    result.extra_bytes.append(peak_bytes() - base_bytes)


def _restore(candidate: CandidateProtocol, number: int, result: Result) -> None:
    base_bytes = resident_bytes()
    reset_peak()
    began = Reading.now()
    candidate.restore(number)
    ended = Reading.now()
    result.restore_s.append(ended.at_s - began.at_s)
    result.restore_cpu_s.append(ended.cpu_s - began.cpu_s)
    result.restore_extra_bytes.append(peak_bytes() - base_bytes)


def main() -> None:
    """Run a trial and print the result."""
    warnings.simplefilter("ignore")
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    print(json.dumps(asdict(run_trial(Trial(**arguments)))), flush=True)


if __name__ == "__main__":
    main()
