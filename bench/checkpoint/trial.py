"""One turn: a contestant saves and restores, in this process, which does nothing else.

python -m checkpoint.trial '{"contestant": "ours", "size": "0.5", "port": 1234, "saves": 3, "restores": 1}'
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from fake_s3 import FakeS3

from checkpoint.candidates import BY_NAME
from checkpoint.process_stats import Reading, forget_peak, peak_bytes, resident_bytes
from checkpoint.state import SHAPES, State

BUCKET = "bench"


class CandidateProtocol(Protocol):
    """What a contestant can do. `number` is that of the checkpoint."""

    def save(self, number: int) -> None:
        """Return when the training may go on."""

    def settle(self) -> None:
        """Return when the checkpoint is durable."""

    @property
    def is_durable(self) -> bool:
        """Whether it is."""

    def restore(self, number: int) -> None:
        """Put the state back to where it was saved."""


@dataclass
class Trial:
    """What is asked for."""

    contestant: str
    size: str
    port: int
    saves: int = 3
    """After the first one."""
    restores: int = 1
    device: str = "cpu"


@dataclass
class Result:
    """What was measured; the first of the saves is that with which all memory is made."""

    size_bytes: int = 0
    stall_s: list[float] = field(default_factory=list)
    durable_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    extra_bytes: list[int] = field(default_factory=list)
    tidy_cpu_s: list[float] = field(default_factory=list)
    """What it takes to remove the checkpoint before, where that is the contestant's business."""
    restore_s: list[float] = field(default_factory=list)
    restore_cpu_s: list[float] = field(default_factory=list)
    restore_extra_bytes: list[int] = field(default_factory=list)


def open_candidate(
    name: str, state: State, port: int, pace_s: float | None = None
) -> CandidateProtocol:
    """A contestant, ready."""
    url = f"s3://{BUCKET}/runs"
    match name.split("-"):
        case ["bare", *more]:
            from checkpoint.hardware_limits import HardwareLimit

            return HardwareLimit(state, port, BUCKET, threads=2 if more else 1)
        case ["ours"]:
            from checkpoint.holdfast_candidate import Holdfast

            return Holdfast(state.objects(), url, pace_s)
        case ["plain", *more]:
            from checkpoint.torch_save import TorchSave

            return TorchSave(state, BUCKET, in_thread=bool(more))
        case [storage, *more]:
            from checkpoint.dcp import Dcp

            threads = 4 if "best" in more else 1
            return Dcp(state, url, storage=storage, threads=threads, cached=bool(more))
    raise ValueError(name)


def run_trial(turn: Trial) -> Result:
    """Have the turn."""
    state = State(SHAPES[turn.size], turn.device)
    s3 = FakeS3(turn.port)
    result = Result(size_bytes=state.size_bytes)
    contestant = open_candidate(turn.contestant, state, turn.port)
    known = state.print()
    base_bytes = resident_bytes()
    prepare = getattr(contestant, "prepare", None)
    if prepare:
        prepare()
    for number in range(turn.saves + 1):
        _save(contestant, number, base_bytes, result)
        tidy = getattr(contestant, "tidy", None)
        if tidy:
            before = Reading.now()
            tidy()
            result.tidy_cpu_s.append(Reading.now().cpu_s - before.cpu_s)
        elif number < turn.saves:
            s3.clear()
    for _ in range(turn.restores if BY_NAME[turn.contestant].restores else 0):
        state.wipe()
        _restore(contestant, turn.saves, result)
        assert BY_NAME[turn.contestant].is_ceiling or state.print() == known, "not what was saved"
    return result


def _save(contestant: CandidateProtocol, number: int, base_bytes: int, result: Result) -> None:
    forget_peak()
    began = Reading.now()
    contestant.save(number)
    stalled_s = Reading.now().at_s - began.at_s
    contestant.settle()
    ended = Reading.now()
    result.stall_s.append(stalled_s)
    result.durable_s.append(ended.at_s - began.at_s)
    result.cpu_s.append(ended.cpu_s - began.cpu_s)
    result.extra_bytes.append(peak_bytes() - base_bytes)


def _restore(contestant: CandidateProtocol, number: int, result: Result) -> None:
    base_bytes = resident_bytes()
    forget_peak()
    began = Reading.now()
    contestant.restore(number)
    ended = Reading.now()
    result.restore_s.append(ended.at_s - began.at_s)
    result.restore_cpu_s.append(ended.cpu_s - began.cpu_s)
    result.restore_extra_bytes.append(peak_bytes() - base_bytes)


def main() -> None:
    """Have one, and say what was measured in the last line."""
    warnings.simplefilter("ignore")
    asked: dict[str, Any] = json.loads(sys.argv[1])
    print(json.dumps(asdict(run_trial(Trial(**asked)))), flush=True)


if __name__ == "__main__":
    main()
