"""Compares the cost of checkpoints. See README.md; run it with `make bench-checkpoint`."""

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

MEASUREMENTS = ("table", "link", "ranks", "comparison", "steps", "gpu")
STORES = ("s3", "gs", "az")
"""URL schemes of stores. Holdfast is compared with itself at each of them, the peers only at S3."""
OUT = ROOT / "build" / "bench-checkpoint"
IN_TRAINING = ("ours", "plain-thread", "s3fs-cached", "s3torch", "s3torch-best")
TYPICAL_STALL_S = {"tiny": 0.02, "0.5": 0.1, "2": 0.33}
"""Stalls from which the upload pace is derived if none was measured in this run."""


def main() -> None:
    """Measure, print and plot."""
    parser = argparse.ArgumentParser(prog="python -m checkpoint", description=__doc__)
    parser.add_argument("--courses", nargs="+", choices=MEASUREMENTS, default=MEASUREMENTS)
    parser.add_argument("--gpu", action="store_true", help="only measurements on a GPU")
    parser.add_argument("--sizes", nargs="+", choices=TYPICAL_STALL_S, default=["0.5", "2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saves", type=int, default=3, help="per trial, after the first one")
    parser.add_argument("--only", nargs="+", choices=BY_NAME, default=list(BY_NAME))
    parser.add_argument("--store", nargs="+", choices=STORES, default=["s3"])
    arguments = parser.parse_args()
    courses = ("gpu",) if arguments.gpu else arguments.courses
    chosen = [c for c in ALL if c.name in arguments.only and c.store in arguments.store]
    if any(candidate.is_peer for candidate in chosen) or "ranks" in courses:
        environment.make_peers()
    OUT.mkdir(parents=True, exist_ok=True)
    plotted: dict[str, Figures] = {}
    _print_heading("the machine")
    print(
        f"  {os.cpu_count()} cores, load {_load()}, torch {torch.__version__}, state on {_device()}"
    )
    if "table" in courses:
        plotted |= _table(chosen, arguments.sizes, arguments.rounds, arguments.saves)
    if "link" in courses:
        plotted |= _link(chosen, arguments.sizes[0], arguments.rounds)
    if "ranks" in courses:
        _ranks(arguments.sizes[0])
    if "comparison" in courses:
        _comparison(arguments.sizes[0], arguments.rounds, arguments.saves)
    if "steps" in courses:
        _steps(
            [c for c in chosen if c.name in IN_TRAINING],
            arguments.sizes[0],
            arguments.saves,
            plotted,
        )
    if "gpu" in courses:
        _gpu(arguments.sizes)
    if plotted:
        (OUT / "figures.svg").write_text(plot(plotted), encoding="utf-8")
        print(f"\n{(OUT / 'figures.svg').relative_to(ROOT)} shows it")
    print(f"load at the end {_load()}")


def _table(
    chosen: list[Candidate], sizes: list[str], rounds: int, saves: int
) -> dict[str, Figures]:
    """Measure all candidates at all sizes, interleaved, so that disturbances affect all of them."""
    results: dict[str, dict[str, list[Any]]] = {size: {} for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            for candidate in chosen:
                _run_trial(results[size], candidate, size, saves, Link())
    plotted: dict[str, Figures] = {}
    for size in sizes:
        figures = digest(results[size])
        _print_heading(
            f"{size} GB, {_tensors(size)} tensors: medians of {rounds} trials of {saves} saves, range, and ratio to Holdfast"
        )
        print(table(figures, [STALL, DURABLE, CPU, MEMORY, RESTORE, RESTORE_CPU]))
        print("\nthe first save of a process, and other measures")
        print(table(figures, [FIRST_STALL, FIRST, RESTORE_MEMORY, TIDY]))
        print(f"\ngoals\n{verdicts(figures, size)}", flush=True)
        plotted[f"{size} GB"] = figures
    _write_results("table", results)
    return plotted


def _link(chosen: list[Candidate], size: str, rounds: int) -> dict[str, Figures]:
    """Measure with the latency and bandwidth of Amazon's S3."""
    results: dict[str, list[Any]] = {}
    for _ in range(rounds):
        for candidate in chosen:
            if candidate.name != "bare-2":
                _run_trial(results, candidate, size, 1, S3_LIKE)
    figures = digest(results)
    title = f"{size} GB, {S3_LIKE.latency_s * 1e3:.0f} ms and {S3_LIKE.bytes_per_s / 1e6:.0f} MB/s per connection"
    _print_heading(title)
    print(table(figures, [STALL, DURABLE, CPU, RESTORE, RESTORE_CPU]), flush=True)
    _write_results("link", results)
    return {title: figures}


def _run_trial(
    results: dict[str, list[Any]], candidate: Candidate, size: str, saves: int, link: Link
) -> None:
    """Run one trial with a separate server whose memory is already allocated."""
    print(f"{size} GB: {candidate.label}", file=sys.stderr, flush=True)
    with fake_s3.in_process() as s3:
        _reserve(s3, candidate, size)
        s3.link(link)
        arguments = {"candidate": candidate.name, "size": size, "port": s3.port}
        more = {"saves": saves, "restores": 1, "device": _device()}
        result = environment.run("trial", arguments | more, s3.port, is_peer=candidate.is_peer)
        results.setdefault(candidate.name, []).append(result)


def _reserve(s3: FakeS3, candidate: Candidate, size: str) -> None:
    gigabytes = {"tiny": 0.01}.get(size) or float(size)
    objects = int(gigabytes * 1.05e9 * candidate.kept / (candidate.object_mib << 20)) + 1
    s3.reserve(objects, candidate.object_mib << 20)


def _ranks(size: str) -> None:
    """Measure staging, memory and written bytes of each of several DDP ranks."""
    _print_heading(f"{size} GB of state on ranks under DDP, MB per rank")
    saves = 3
    for world in (2, 4):
        for candidate in (BY_NAME["ours"], BY_NAME["s3torch-best"]):
            with fake_s3.in_process() as s3:
                arguments = {"candidate": candidate.name, "size": size, "saves": saves}
                rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{_free_port()}"}
                results = environment.gathered(
                    [
                        environment.start(
                            "ranks",
                            arguments,
                            s3.port,
                            is_peer=candidate.is_peer,
                            RANK=f"{rank}",
                            WORLD_SIZE=f"{world}",
                            OMP_NUM_THREADS="1",
                            **rendezvous,
                        )
                        for rank in range(world)
                    ]
                )
                written = _written(s3, saves)
            staged, extra = (
                _megabytes(r[k] for r in results) for k in ("staged_bytes", "extra_bytes")
            )
            stall_s = statistics.median(
                max(turn) for turn in zip(*(r["stall_s"] for r in results), strict=True)
            )
            print(f"  {world} ranks, {candidate.label}: staged {staged}, peak over baseline {extra}, written {_megabytes(written)}; stall of the slowest {stall_s:.3f} s", flush=True)  # fmt: skip


def _comparison(size: str, rounds: int, saves: int) -> None:
    """Measure the comparison of ranks for averaged weights that both of two ranks hold."""
    _print_heading(
        f"{size} GB and an average of weights on two ranks, of which the second compares the average"
    )
    trials: dict[bool, list[Any]] = {True: [], False: []}
    track_times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for is_compared in (True, False):
            with fake_s3.in_process() as s3:
                arguments = {"size": size, "saves": saves, "is_compared": is_compared}
                rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{_free_port()}", "WORLD_SIZE": "2"}  # fmt: skip
                results = environment.gathered(
                    [
                        environment.start(
                            "comparison",
                            arguments,
                            s3.port,
                            is_peer=False,
                            RANK=f"{rank}",
                            OMP_NUM_THREADS="1",
                            **rendezvous,
                        )
                        for rank in range(2)
                    ]
                )
            track_times[is_compared].append(max(r["track_s"] for r in results))
            for ranks in zip(*(r["turns"] for r in results), strict=True):
                trials[is_compared].append([max(values) for values in zip(*ranks, strict=True)])
    for number, name in enumerate(("stall", "durable", "a concurrent step")):
        compared_s, plain_s = (statistics.median(t[number] for t in trials[c]) for c in (True, False))  # fmt: skip
        print(f"  {name}: {compared_s * 1e3:.2f} ms compared, {plain_s * 1e3:.2f} ms not: x{compared_s / plain_s:.2f}", flush=True)  # fmt: skip
    compared_s, plain_s = (statistics.median(track_times[c]) for c in (True, False))
    print(f"  track: {compared_s:.3f} s compared, {plain_s:.3f} s not", flush=True)


def _written(s3: FakeS3, saves: int) -> list[float]:
    """Bytes that each rank sent per save."""
    sent: Counter[int] = Counter()
    for entry in s3.log():
        match = re.search(r"/rank-(\d+)/|/__(\d+)_", entry.key)
        if match and entry.method == "PUT":
            sent[int(match[1] or match[2])] += entry.bytes_in
    return [sent[rank] / saves for rank in sorted(sent)]


def _steps(chosen: list[Candidate], size: str, saves: int, plotted: dict[str, Figures]) -> None:
    """Measure the slowdown of a single-threaded training."""
    _print_heading(f"steps of a single-threaded training while {size} GB are saved")
    measured = plotted.get(f"{size} GB", {}).get(("ours", STALL))
    stall_s = measured.median if measured else TYPICAL_STALL_S[size]
    pace_s = UPLOAD_TIME_SHARE * optimal_interval(stall_s, durable_s=0.0, between_s=PRIOR_S)
    for candidate in chosen:
        with fake_s3.in_process() as s3:
            _reserve(s3, candidate, size)
            arguments = {
                "candidate": candidate.name,
                "size": size,
                "saves": saves,
                "pace_s": pace_s if candidate.name == "ours" else None,
            }
            results = environment.run("training_interference", arguments | {"port": s3.port}, s3.port, is_peer=candidate.is_peer)  # fmt: skip
        lost = f"{statistics.median(results['lost_s']):.2f} ({min(results['lost_s']):.2f} to {max(results['lost_s']):.2f})"
        slower = "no step" if not results["slower"] else "x{:.2f} in the median, x{:.2f} in the mean".format(*results["slower"])  # fmt: skip
        print(f"  {candidate.label}: {slower} over {results['steps']} steps of {results['step_s'] * 1e3:.1f} ms; a save takes {lost} s of training", flush=True)  # fmt: skip


def _gpu(sizes: list[str]) -> None:
    """Measure copies off a GPU."""
    _print_heading("copies off a GPU")
    if not torch.cuda.is_available():
        print("  no GPU: not measured")
        return
    for size in sizes:
        with fake_s3.in_process() as s3:
            _reserve(s3, BY_NAME["ours"], size)
            print(gpu.describe(environment.run("gpu", {"size": size}, s3.port, is_peer=False)))


def _write_results(name: str, results: Any) -> None:
    """Write raw results to a file."""
    (OUT / f"{name}.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


def _print_heading(title: str) -> None:
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
