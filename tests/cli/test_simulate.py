"""The command `simulate`: its output, its files, and the sentence for each wrong input."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.domain.planning.traces import MAX_BYTES
from holdfast.errors import HoldfastError
from support.spot_traces import AWS_2022, AWS_2023, DATA
from typer.testing import CliRunner

JOB = ("--work", "2h", "--deadline", "4h", "--changeover", "5m")
PRICE = ("--spot-price", "1", "--on-demand-price", "3")
LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from holdfast.cli import main
main()
"""
"""The command with 2 GiB of address space."""


def simulate(*args: object) -> str:
    """Run the command, and return what it prints."""
    done = CliRunner().invoke(app, ["simulate", *map(str, args)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def refusal(*args: object) -> str:
    """Run the command with wrong input, and return the sentence."""
    with pytest.raises(HoldfastError) as refused:
        simulate(*args)
    assert refused.value.exit_code == 2
    return str(refused.value)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "zone.json", [1, 1, 0, 2, 2, None] * 12)


def write(path: Path, data: Any, gap: Any = 600) -> Path:
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": data}))
    return path


def test_json_has_settings_traces_and_results(trace: Path) -> None:
    body = json.loads(simulate(trace, *JOB, *PRICE, "--starts", 2, "--gang", 2, "--json"))

    assert set(body) == {"settings", "traces", "results", "job_hours", "cpu_s"}
    assert body["traces"] == [
        {"name": "zone", "gap_seconds": 600, "ticks": 72, "availability": 0.4}
    ]
    assert [one["policy"] for one in body["results"]] == [
        "greedy", "uniform-progress", "threshold", "holdfast", "on-demand"
    ]  # fmt: skip
    assert set(body["results"][0]) == {
        "policy", "deadline_h", "changeover_h", "runs", "misses", "late_s_max", "cost_usd", "cost_over_on_demand",
        "on_demand_share", "spot_h", "on_demand_h", "idle_h", "changeovers", "preemptions", "finish_h",
    }  # fmt: skip
    assert set(body["results"][0]["cost_usd"]) == {"mean", "p10", "p50", "p90"}
    assert set(body["results"][0]["finish_h"]) == {"mean", "p90"}
    assert body["job_hours"] == pytest.approx(
        sum(one["finish_h"]["mean"] * one["runs"] for one in body["results"])
    )
    assert body["settings"]["work_h"] == 2


def test_table_names_each_policy_and_deadline(trace: Path) -> None:
    lines = simulate(trace, *JOB, "--deadline", "1.5x", *PRICE, "--policy", "optimal").splitlines()

    assert lines[0].split()[0] == "POLICY"
    assert [line.split()[:3] for line in lines[1:]] == [
        ["optimal", "3", "h"],
        ["optimal", "4", "h"],
    ]


def test_same_input_gives_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    found = []
    for name in ("first.csv", "second.csv"):
        rows = tmp_path / name
        text = simulate(trace, *JOB, *PRICE, "--seed", 3, "--rows", rows, "--json")
        found.append((re.sub(r'"cpu_s": [^,}]*', "", text), rows.read_bytes()))

    assert found[0] == found[1]


def test_rows_are_the_runs_behind_the_means(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    body = json.loads(simulate(trace, *JOB, *PRICE, "--starts", 4, "--rows", path, "--json"))

    with path.open() as file:
        rows = [*csv.DictReader(file)]

    assert [*rows[0]] == [
        "trace", "start_index", "deadline_h", "changeover_h", "policy", "cost_usd", "finish_h", "missed",
        "spot_h", "on_demand_h", "changeovers", "preemptions",
    ]  # fmt: skip
    for result in body["results"]:
        costs = [float(row["cost_usd"]) for row in rows if row["policy"] == result["policy"]]
        assert len(costs) == 4
        assert sum(costs) / 4 == pytest.approx(result["cost_usd"]["mean"], abs=1e-9)


def test_windows_name_their_trace_and_changeover(trace: Path, tmp_path: Path) -> None:
    windows = tmp_path / "windows.csv"
    windows.write_text(
        "trace,start_index,length_ticks,changeover_h\nzone,3,24,0.1\nzone,5,30,\nzone,7,24,0.1\n"
    )

    body = json.loads(
        simulate(trace, *JOB, *PRICE, "--windows", windows, "--policy", "greedy", "--json")
    )

    assert [(one["changeover_h"], one["runs"]) for one in body["results"]] == [
        (pytest.approx(5 / 60), 1),
        (pytest.approx(0.1), 2),
    ]


def test_zones_of_a_table_are_replayed_together() -> None:
    """A gang of 16 nodes finds more of them in ten zones than in one."""
    args = (DATA / "gcp_h100" / "counts.csv", "--gang", 16, "--work", "24h", "--deadline", "1.25x")
    args += ("--starts", 2, "--policy", "greedy", "--json", *PRICE)

    apart = json.loads(simulate(*args))["results"][0]
    together = json.loads(simulate(*args, "--zones", "together"))["results"][0]

    assert (apart["runs"], together["runs"]) == (20, 2)
    assert together["spot_h"] > apart["spot_h"]


def test_recorded_prices_are_paid() -> None:
    args = (AWS_2023, "--prices", DATA / "aws_2023_02_15_prices.json", "--on-demand-price", 3.06)
    args += ("--work", "24h", "--deadline", "1.5x", "--starts", 2, "--policy", "greedy", "--json")

    found = [
        json.loads(simulate(*args, "--zones", "together", *egress))["results"][0]["cost_usd"][
            "mean"
        ]
        for egress in ((), ("--egress-usd-per-gb", 0.02, "--checkpoint-gb", 50))
    ]

    assert 0 < found[0] < found[1]


def test_lateness_with_a_wait_for_on_demand_is_reported(trace: Path) -> None:
    args = (trace, *JOB, *PRICE, "--on-demand-wait", "20m", "--starts", 5, "--json")

    results = json.loads(simulate(*args))["results"]

    assert all(one["late_s_max"] <= 1200 for one in results)
    assert {one["policy"]: one["misses"] for one in results}["holdfast"] == 0


@pytest.mark.parametrize(
    ("args", "lost_work_s"),
    [
        ((), 0),
        (("--lost-work", "10m"), 600),
        (("--lost-work", "10m", "--notice", "2m"), 120),
        (("--notice", "2m"), 0),
    ],
)
def test_notice_bounds_the_lost_work(
    trace: Path, args: tuple[str, ...], lost_work_s: float
) -> None:
    body = json.loads(simulate(trace, *JOB, *PRICE, *args, "--policy", "greedy", "--json"))

    assert body["settings"]["lost_work_s"] == lost_work_s


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--work", "2"), "--work 2: write a time such as 45s, 30m, 4h or 3d"),
        (("--work", "0h"), "--work 0h: write a time above 0, such as 48h"),
        (("--work", "nanh"), "--work nanh: write a time such as"),
        (("--deadline", "2h"), "--deadline 2h: the work and one changeover take 2.083 h"),
        (("--deadline", "0.9x"), "--deadline 0.9x: write a multiple of the work above 1"),
        (("--deadline", "soonx"), "--deadline soonx: write a multiple of the work above 1"),
        (("--deadline", "soon"), "--deadline soon: write a time such as"),
        (("--deadline", "20h"), "zone covers 12 h, less than the deadline of 20 h"),
        (("--changeover", "-1s"), "--changeover -1s: write a time such as"),
        (("--spot-price", "0"), "--spot-price 0.0: write USD per hour above 0"),
        (("--spot-price", "nan"), "--spot-price nan: write USD per hour above 0"),
        (("--on-demand-price", "-1"), "--on-demand-price -1.0: write USD per hour above 0"),
        (("--on-demand-price", "inf"), "--on-demand-price inf: write USD per hour above 0"),
        (("--egress-usd-per-gb", "inf"), "--egress-usd-per-gb inf: write USD per GB"),
        (("--zones", "all"), "--zones all: write apart or together"),
        (("--sight", "none"), "--sight none: write all or own"),
        (("--policy", "gredy"), "--policy gredy: no such policy; did you mean greedy?"),
        (("--max-cost", "0"), "--max-cost 0.0: write USD above 0"),
        (("--lost-work", "much"), "--lost-work much: write a time such as"),
        (("--notice", "2"), "--notice 2: write a time such as"),
        (("--rows", "/nowhere/rows.csv"), "--rows /nowhere/rows.csv: No such file or directory"),
        (("--windows", "/nowhere.csv"), "/nowhere.csv: No such file or directory"),
        (("--prices", "/nowhere.json"), "/nowhere.json: No such file or directory"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_option_is_refused_with_its_name(
    trace: Path, args: tuple[str, str], sentence: str
) -> None:
    given = [*JOB, *PRICE]
    if args[0] in given:
        at = given.index(args[0])
        del given[at : at + 2]

    assert refusal(trace, *given, *args).startswith(sentence)


def test_missing_spot_price_is_refused(trace: Path) -> None:
    sentence = refusal(trace, *JOB, "--on-demand-price", 3)

    assert sentence == "--spot-price is missing; write USD per hour, or --prices FILE.json"


def test_files_that_do_not_fit_are_refused(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()

    assert "no file there ends with .json or .csv" in refusal(other, *JOB, *PRICE)
    assert "No such file or directory" in refusal(tmp_path / "none.json", *JOB, *PRICE)
    same = write(other / "zone.json", [1] * 72)
    assert "zone: 2 traces have this name" in refusal(trace, same, *JOB, *PRICE)
    minute = write(other / "minute.json", [1] * 72, 60)
    assert "run them one after the other" in refusal(trace, minute, *JOB, *PRICE)
    short = write(other / "short.json", [1] * 30)
    together = refusal(trace, short, *JOB, *PRICE, "--zones", "together")
    assert "must cover the same time" in together
    zone_id = write(other / "use1-az1.json", [1] * 72)
    assert "is the id of a zone" in refusal(zone_id, *JOB, *PRICE)
    (other / "binary.json").write_bytes(b"\xff\xfe")
    assert "not a text file" in refusal(other / "binary.json", *JOB, *PRICE)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the column trace is missing; write trace, start_index, length_ticks"),
        ("trace,start_index\nzone,1\n", "the column length_ticks is missing"),
        ("trace,start_index,length_ticks\n", "no windows; write one line for each start"),
        ("trace,start_index,length_ticks\nzone,one,24\n", "line 2: start_index and length_ticks"),
        ("trace,start_index,length_ticks\nzone,1\n", "line 2: start_index and length_ticks"),
        ("trace,start_index,length_ticks\nzone,60,24\n", "is not within its 72 ticks"),
        ("trace,start_index,length_ticks\nzone,1,99\n", "is not within its 72 ticks"),
        ("trace,start_index,length_ticks\nzone,1,9\n", "less than the 24 ticks"),
        ("trace,start_index,length_ticks\nother,1,24\n", "no trace is named other"),
        ("trace,start_index,length_ticks,changeover_h\nzone,1,24,x\n", "changeover_h is x"),
        ("trace,start_index,length_ticks,changeover_h\nzone,1,24,-1\n", "changeover_h is -1"),
        ("trace,start_index,length_ticks,changeover_h\nzone,1,24,nan\n", "changeover_h is nan"),
    ],
)
def test_bad_windows_are_refused(trace: Path, tmp_path: Path, text: str, sentence: str) -> None:
    windows = tmp_path / "windows.csv"
    windows.write_text(text)

    assert sentence in refusal(trace, *JOB, *PRICE, "--windows", windows)


def test_file_above_the_limit_is_refused_within_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(2**30)

    done = subprocess.run(
        [sys.executable, "-c", LIMIT, "simulate", str(path), *JOB, *PRICE],
        capture_output=True,
        text=True,
        check=False,
        env={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
    )

    assert done.returncode == 2
    assert f"is larger than {MAX_BYTES // 2**20} MiB; split the recording" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_numpy_is_named_with_the_remedy() -> None:
    code = "import sys; sys.modules['numpy'] = None\nfrom holdfast.cli import main\nmain()"

    for args, status in ((["simulate", "--help"], 0), (["simulate", "x.json", *JOB, *PRICE], 2)):
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        assert done.returncode == status, done.stderr
        assert ("numpy" in done.stderr.lower()) == bool(status)
        assert ("pip install" in done.stderr) == bool(status)


def test_recordings_of_a_folder_are_read_by_name() -> None:
    args = (AWS_2022, "--work", "4h", "--deadline", "8h", "--starts", 1, "--policy", "on-demand")

    body = json.loads(simulate(*args, *PRICE, "--json"))

    assert [one["name"] for one in body["traces"]] == sorted(p.stem for p in AWS_2022.iterdir())


def test_fastest_keeps_to_its_budget(tmp_path: Path) -> None:
    zone = write(tmp_path / "zone.json", [0] * 6 + [1] * 60)
    args = (zone, *JOB, *PRICE, "--policy", "fastest", "--starts", 1, "--json")

    bodies = [json.loads(simulate(*args, *more)) for more in ((), ("--max-cost", 4))]

    assert [body["settings"]["max_cost_usd"] for body in bodies] == [None, 4.0]
    hours = [body["results"][0]["finish_h"]["mean"] for body in bodies]
    costs = [body["results"][0]["cost_usd"]["mean"] for body in bodies]
    assert hours[0] < hours[1]
    assert costs[1] <= 4.0 < costs[0]
