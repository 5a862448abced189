"""What a checkpoint costs, ours beside others. See README.md; run it with `make bench-checkpoint`."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import sys
import time
from collections import Counter
from typing import Any

import fake_s3
import torch
from fake_s3 import S3_LIKE, FakeS3, Link
from holdfast_worker.checkpoint.checkpointer import UPLOAD_TIME_SHARE
from holdfast_worker.checkpoint.failure_rate import PRIOR_S
from holdfast_worker.checkpoint.schedule import optimal_interval

from checkpoint import environment, gpu
from checkpoint.candidates import ALL, BY_NAME, Candidate
from checkpoint.environment import ROOT
from checkpoint.plot import plot
from checkpoint.state import SHAPES
from checkpoint.statistics import (
    CPU,
    DURABLE,
    FIRST,
    FIRST_STALL,
    MEMORY,
    RESTORE,
    RESTORE_CPU,
    RESTORE_MEMORY,
    STALL,
    TIDY,
    Figures,
    digest,
)
from checkpoint.table import table, verdicts

COURSES = ("table", "link", "ranks", "comparison", "steps", "gpu")
OUT = ROOT / "build" / "bench-checkpoint"
BESIDE_A_TRAINING = ("ours", "plain-thread", "s3fs-cached", "s3torch", "s3torch-best")
TYPICAL_STALL_S = {"tiny": 0.02, "0.5": 0.1, "2": 0.33}
"""From which the pace of an upload follows, where none was measured in this run."""


def main() -> None:
    """Measure, print, and draw."""
    words = argparse.ArgumentParser(prog="python -m checkpoint", description=__doc__)
    words.add_argument("--courses", nargs="+", choices=COURSES, default=COURSES)
    words.add_argument("--gpu", action="store_true", help="only what needs a GPU")
    words.add_argument("--sizes", nargs="+", choices=TYPICAL_STALL_S, default=["0.5", "2"])
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--saves", type=int, default=3, help="per turn, after the first one")
    words.add_argument("--only", nargs="+", choices=BY_NAME, default=list(BY_NAME))
    asked = words.parse_args()
    courses = ("gpu",) if asked.gpu else asked.courses
    chosen = [c for c in ALL if c.name in asked.only]
    environment.make_peers()
    OUT.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Figures] = {}
    _head("the machine")
    print(
        f"  {os.cpu_count()} cores, load {_load()}, torch {torch.__version__}, state on {_device()}"
    )
    if "table" in courses:
        drawn |= _table(chosen, asked.sizes, asked.rounds, asked.saves)
    if "link" in courses:
        drawn |= _link(chosen, asked.sizes[0], asked.rounds)
    if "ranks" in courses:
        _ranks(asked.sizes[0])
    if "comparison" in courses:
        _comparison(asked.sizes[0], asked.rounds, asked.saves)
    if "steps" in courses:
        _steps(
            [c for c in chosen if c.name in BESIDE_A_TRAINING], asked.sizes[0], asked.saves, drawn
        )
    if "gpu" in courses:
        _gpu(asked.sizes)
    if drawn:
        (OUT / "figures.svg").write_text(plot(drawn), encoding="utf-8")
        print(f"\n{(OUT / 'figures.svg').relative_to(ROOT)} shows it")
    print(f"load at the end {_load()}")


def _table(
    chosen: list[Candidate], sizes: list[str], rounds: int, saves: int
) -> dict[str, Figures]:
    """Everyone at every size, turn by turn, so that what disturbs one disturbs all."""
    said: dict[str, dict[str, list[Any]]] = {size: {} for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            for contestant in chosen:
                _turn(said[size], contestant, size, saves, Link())
    drawn: dict[str, Figures] = {}
    for size in sizes:
        figures = digest(said[size])
        _head(
            f"{size} GB, {_tensors(size)} tensors: medians of {rounds} turns of {saves} saves, range, and of ours"
        )
        print(table(figures, [STALL, DURABLE, CPU, MEMORY, RESTORE, RESTORE_CPU]))
        print("\nthe first save of a process, and what else there is")
        print(table(figures, [FIRST_STALL, FIRST, RESTORE_MEMORY, TIDY]))
        print(f"\ngoals\n{verdicts(figures, size)}", flush=True)
        drawn[f"{size} GB"] = figures
    _keep("table", said)
    return drawn


def _link(chosen: list[Candidate], size: str, rounds: int) -> dict[str, Figures]:
    """The same over a line like the one to Amazon's S3."""
    said: dict[str, list[Any]] = {}
    for _ in range(rounds):
        for contestant in chosen:
            if contestant.name != "bare-2":
                _turn(said, contestant, size, 1, S3_LIKE)
    figures = digest(said)
    title = f"{size} GB, {S3_LIKE.latency_s * 1e3:.0f} ms and {S3_LIKE.bytes_per_s / 1e6:.0f} MB/s per connection"
    _head(title)
    print(table(figures, [STALL, DURABLE, CPU, RESTORE, RESTORE_CPU]), flush=True)
    _keep("link", said)
    return {title: figures}


def _turn(
    said: dict[str, list[Any]], contestant: Candidate, size: str, saves: int, link: Link
) -> None:
    """One turn with a server of its own, which has made its memory before."""
    print(f"{size} GB: {contestant.label}", file=sys.stderr, flush=True)
    with fake_s3.in_process() as s3:
        _reserve(s3, contestant, size)
        s3.link(link)
        asked = {"contestant": contestant.name, "size": size, "port": s3.port}
        more = {"saves": saves, "restores": 1, "device": _device()}
        result = environment.run("trial", asked | more, s3.port, is_peer=contestant.is_peer)
        said.setdefault(contestant.name, []).append(result)


def _reserve(s3: FakeS3, contestant: Candidate, size: str) -> None:
    gigabytes = {"tiny": 0.01}.get(size) or float(size)
    objects = int(gigabytes * 1.05e9 * contestant.kept / (contestant.object_mib << 20)) + 1
    s3.reserve(objects, contestant.object_mib << 20)


def _ranks(size: str) -> None:
    """What each of several ranks that train alike stages, needs and writes."""
    _head(f"{size} GB of state on ranks under DDP, MB per rank")
    saves = 3
    for world in (2, 4):
        for contestant in (BY_NAME["ours"], BY_NAME["s3torch-best"]):
            with fake_s3.in_process() as s3:
                asked = {"contestant": contestant.name, "size": size, "saves": saves}
                meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{_free_port()}"}
                said = environment.gathered(
                    [
                        environment.start(
                            "ranks",
                            asked,
                            s3.port,
                            is_peer=contestant.is_peer,
                            RANK=f"{rank}",
                            WORLD_SIZE=f"{world}",
                            OMP_NUM_THREADS="1",
                            **meeting,
                        )
                        for rank in range(world)
                    ]
                )
                written = _written(s3, saves)
            staged, extra = (
                _megabytes(r[k] for r in said) for k in ("staged_bytes", "extra_bytes")
            )
            stall_s = statistics.median(
                max(turn) for turn in zip(*(r["stall_s"] for r in said), strict=True)
            )
            print(f"  {world} ranks, {contestant.label}: staged {staged}, peak over baseline {extra}, written {_megabytes(written)}; stall of the slowest {stall_s:.3f} s", flush=True)  # fmt: skip


def _comparison(size: str, rounds: int, saves: int) -> None:
    """What the comparison of ranks takes, beside none: of an average of weights, which both of two ranks hold whole."""
    _head(
        f"{size} GB and an average of weights on two ranks, of which the second compares the average"
    )
    turns: dict[bool, list[Any]] = {True: [], False: []}
    tracks: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for is_compared in (True, False):
            with fake_s3.in_process() as s3:
                asked = {"size": size, "saves": saves, "is_compared": is_compared}
                meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{_free_port()}", "WORLD_SIZE": "2"}  # fmt: skip
                said = environment.gathered(
                    [
                        environment.start(
                            "comparison",
                            asked,
                            s3.port,
                            is_peer=False,
                            RANK=f"{rank}",
                            OMP_NUM_THREADS="1",
                            **meeting,
                        )
                        for rank in range(2)
                    ]
                )
            tracks[is_compared].append(max(r["track_s"] for r in said))
            for ranks in zip(*(r["turns"] for r in said), strict=True):
                turns[is_compared].append([max(values) for values in zip(*ranks, strict=True)])
    for number, name in enumerate(("stall", "durable", "a step beside it")):
        compared_s, plain_s = (statistics.median(t[number] for t in turns[c]) for c in (True, False))  # fmt: skip
        print(f"  {name}: {compared_s * 1e3:.2f} ms compared, {plain_s * 1e3:.2f} ms not: x{compared_s / plain_s:.2f}", flush=True)  # fmt: skip
    compared_s, plain_s = (statistics.median(tracks[c]) for c in (True, False))
    print(f"  track: {compared_s:.3f} s compared, {plain_s:.3f} s not", flush=True)


def _written(s3: FakeS3, saves: int) -> list[float]:
    """Bytes of one save that each rank sent."""
    sent: Counter[int] = Counter()
    for entry in s3.log():
        match = re.search(r"/rank-(\d+)/|/__(\d+)_", entry.key)
        if match and entry.method == "PUT":
            sent[int(match[1] or match[2])] += entry.bytes_in
    return [sent[rank] / saves for rank in sorted(sent)]


def _steps(chosen: list[Candidate], size: str, saves: int, drawn: dict[str, Figures]) -> None:
    """What a training of one thread notices."""
    _head(f"steps of a training on one thread while {size} GB are saved beside it")
    measured = drawn.get(f"{size} GB", {}).get(("ours", STALL))
    stall_s = measured.median if measured else TYPICAL_STALL_S[size]
    pace_s = UPLOAD_TIME_SHARE * optimal_interval(stall_s, durable_s=0.0, between_s=PRIOR_S)
    for contestant in chosen:
        with fake_s3.in_process() as s3:
            _reserve(s3, contestant, size)
            asked = {
                "contestant": contestant.name,
                "size": size,
                "saves": saves,
                "pace_s": pace_s if contestant.name == "ours" else None,
            }
            said = environment.run("training_interference", asked | {"port": s3.port}, s3.port, is_peer=contestant.is_peer)  # fmt: skip
        lost = f"{statistics.median(said['lost_s']):.2f} ({min(said['lost_s']):.2f} to {max(said['lost_s']):.2f})"
        slower = "no step" if not said["slower"] else "x{:.2f} in the median, x{:.2f} in the mean".format(*said["slower"])  # fmt: skip
        print(f"  {contestant.label}: {slower} over {said['steps']} steps of {said['step_s'] * 1e3:.1f} ms; a save takes {lost} s of training", flush=True)  # fmt: skip


def _gpu(sizes: list[str]) -> None:
    """What only a GPU can tell."""
    _head("off a GPU")
    if not torch.cuda.is_available():
        print("  there is none here: not measured")
        return
    for size in sizes:
        with fake_s3.in_process() as s3:
            _reserve(s3, BY_NAME["ours"], size)
            print(gpu.words(environment.run("gpu", {"size": size}, s3.port, is_peer=False)))


def _keep(name: str, said: Any) -> None:
    """Keep what was said, to be looked at again."""
    (OUT / f"{name}.json").write_text(json.dumps(said, indent=1), encoding="utf-8")


def _head(title: str) -> None:
    print(f"\n== {title} [{time.strftime('%H:%M:%S')}, load {_load()}]", flush=True)


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _megabytes(sizes: Any) -> str:
    return " ".join(f"{size / 1e6:.0f}" for size in sizes)


def _tensors(size: str) -> int:
    return 3 * len(SHAPES[size].parameters())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
