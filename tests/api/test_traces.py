"""Observed availability of places: list, export, import, and the way back into `simulate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.domain.planning.beliefs import beliefs_over
from holdfast.domain.planning.observations import MAX_RUNS
from holdfast.domain.planning.place_history import belief_of
from holdfast.domain.planning.traces import parse_json
from holdfast.errors import HoldfastError
from holdfast.store.journal import Journal
from holdfast.store.market.observations import PlaceObservations
from sqlalchemy import Engine
from support.events import at, denied, launched, lost, ready, submitted
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

JOB = ("--work", "2h", "--deadline", "6h", "--starts", "2", "--json")
PRICES = ("--spot-price", "1", "--on-demand-price", "3")


@pytest.fixture
def url(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with served(world) as address:
        monkeypatch.setenv("HOLDFAST_URL", address)
        yield address


@pytest.fixture
def observed(world: SimulatedService, engine: Engine) -> SimulatedService:
    """A service whose job had a zone for two hours, an hour after a denial of its region."""
    first = submitted(infra="")
    spec = {**first.spec, "resources": {"accelerators": "A100:8"}}
    journal = Journal(engine, world.clock)
    job = journal.submit("job-1", replace(first, spec=spec))
    placed = replace(ready(3600, zone="aws/us-east-1/us-east-1a"), is_spot=True)
    journal.append(job, [launched(1), denied(2, zone="aws/us-east-1"), placed, lost(10_800)])
    world.clock.advance((at(12 * 3600) - world.clock.now()).total_seconds())
    return world


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def refusal(*words: object) -> str:
    with pytest.raises(HoldfastError) as refused:
        run(*words)
    assert refused.value.exit_code in {2, 6}
    return str(refused.value)


def write(path: Path, data: Any, **metadata: Any) -> Path:
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600, **metadata}, "data": data}))
    return path


def test_list_has_places_with_their_availability(observed: SimulatedService) -> None:
    places = observed.http.get("/v1/traces").json()["places"]

    assert [(one["place"], one["hardware"], one["source"]) for one in places] == [
        ("aws/us-east-1", "a100:8", "own"),
        ("aws/us-east-1/us-east-1a", "a100:8", "own"),
    ]
    assert [(one["ticks"], one["availability"]) for one in places] == [
        (1, 0.0),
        (13, pytest.approx(12 / 13)),
    ]


def test_export_covers_one_time_with_all_places(observed: SimulatedService) -> None:
    body = observed.http.get("/v1/traces/export", params={"since": "2026-03-01"}).json()

    region, zone = body["recordings"]
    assert (region["name"], zone["name"]) == ("us-east-1_a100-8", "us-east-1a_a100-8")
    assert region["start"] == zone["start"] == "2026-03-01T00:00:00Z"
    assert sum(ticks for _, ticks in region["runs"]) == sum(ticks for _, ticks in zone["runs"])
    assert zone["runs"][:3] == [[None, 78], [True, 12], [False, 1]]


def test_exported_folder_can_be_simulated(
    observed: SimulatedService, url: str, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "traces"

    said = run("traces", "export", "--since", "2026-03-01", "--out", out)
    result = json.loads(run("simulate", out, *JOB, *PRICES))

    assert said == f"wrote 2 files to {out}\n"
    assert [trace["name"] for trace in result["traces"]] == [
        "us-east-1_a100-8",
        "us-east-1a_a100-8",
    ]
    assert result["traces"][1]["availability"] == pytest.approx(12 / 13)


def test_beliefs_are_those_over_the_exported_trace(
    observed: SimulatedService, url: str, tmp_path: Path, engine: Engine
) -> None:
    run("traces", "export", "--since", "2026-03-01", "--out", tmp_path)
    file = tmp_path / "us-east-1a_a100-8.json"
    age_s, loss, returns = beliefs_over(parse_json(file.stem, file.read_text()))

    now = observed.clock.now()
    rows = PlaceObservations(engine).of_place("aws/us-east-1/us-east-1a", "a100:8", at(0))
    belief = belief_of(rows, now)

    assert (belief.age_s, belief.loss, belief.returns) == (
        age_s[-1],
        pytest.approx(loss[-1]),
        pytest.approx(returns[-1]),
    )


def test_export_is_imported_as_what_it_was(
    observed: SimulatedService, url: str, tmp_path: Path
) -> None:
    run("traces", "export", "--since", "2026-03-01", "--out", tmp_path)

    first, second = (json.loads(run("traces", "import", tmp_path, "--json")) for _ in range(2))

    places = observed.http.get("/v1/traces").json()["places"]
    ours = {(p["place"], p["hardware"], p["ticks"], p["availability"]) for p in places}
    assert len(ours) == 2, "the imported recordings show the same"
    assert {p["source"] for p in places} == {"own", "us-east-1_a100-8", "us-east-1a_a100-8"}
    assert [each["is_new"] for each in first["imported"]] == [True, True]
    assert [each["is_new"] for each in second["imported"]] == [False, False]


def test_place_follows_from_the_name(world: SimulatedService, url: str, tmp_path: Path) -> None:
    write(tmp_path / "us-west-2a_v100_8.json", [1, 1, 0, None])
    (tmp_path / "counts.csv").write_text(
        "time,us-central1-a,us-central1-c\n2026-02-01T00:00:00Z,1,0\n2026-02-01T00:10:00Z,0,0\n"
    )

    said = run("traces", "import", tmp_path)

    assert said.splitlines() == [
        "counts.us-central1-a: imported, gcp/us-central1/us-central1-a",
        "counts.us-central1-c: imported, gcp/us-central1/us-central1-c",
        "us-west-2a_v100_8: imported, aws/us-west-2/us-west-2a (v100:8)",
    ]
    places = {one["source"]: one for one in world.http.get("/v1/traces").json()["places"]}
    assert places["counts.us-central1-a"]["since"] == "2026-02-01T00:00:00Z"
    undated = places["us-west-2a_v100_8"]["until"]
    assert undated < (world.clock.now() - timedelta(days=1)).isoformat()
    assert "v100:8" in run("traces", "list")


def test_place_can_be_given(world: SimulatedService, url: str, tmp_path: Path) -> None:
    file = write(tmp_path / "probes.json", [1, 0])

    said = run("traces", "import", file, "--place", "AWS/us-east-1")

    assert said == "probes: imported, aws/us-east-1\n"
    assert world.http.get("/v1/audit").json()["rows"][0]["action"] == "trace.import"


def test_nothing_observed(world: SimulatedService, url: str, tmp_path: Path) -> None:
    assert "nothing was observed yet" in run("traces", "list")
    assert "nothing was written" in run("traces", "export", "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_wrong_input_is_a_sentence(url: str, tmp_path: Path) -> None:
    good = write(tmp_path / "us-west-2a.json", [1, 0])
    run("traces", "import", good)
    csv = tmp_path / "two.csv"
    csv.write_text("time,us-central1-a,us-central1-c\n0,1,0\n600,0,0\n")
    (tmp_path / "empty").mkdir()

    cases = {
        ("import", write(tmp_path / "probes.json", [1])): "name its place with --place",
        ("import", write(tmp_path / "use1-az1.json", [1])): "is the id of a zone",
        ("import", good, "--place", "aws/us-east-1/use1-az1"): "has the id of a zone",
        ("import", good, "--place", "nowhere/a"): "place: 'nowhere/a' is no place",
        ("import", csv, "--place", "gcp/us-central1"): "import one at a time",
        ("import", write(tmp_path / "b.json", [], start="x")): "data is empty",
        ("import", write(tmp_path / "us-west-2b.json", [1], start="x")): "metadata.start is 'x'",
        ("import", write(tmp_path / "us-west-2c.json", [None])): "no known tick",
        ("import", write(tmp_path / "us-west-2d.json", [1], start="0001-01-01")): "start: 1-01-01 is no time",
        ("import", tmp_path / "empty"): "no file there ends with .json or .csv",
        ("import", tmp_path / "missing.json"): "No such file",
        ("import", write(tmp_path / "sub name us-west-2a.json", [1]), "--place", "aws"): "is no name",
        ("import", write(tmp_path / "us-west-2a.json", [0, 0])): "another recording has this name",
        ("export", "--since", "soon", "--out", tmp_path): "since: 'soon' is not a day",
        ("export", "--since", "2090-01-01", "--out", tmp_path): "since: 2090-01-01 is not a day",
    }  # fmt: skip
    for words, sentence in cases.items():
        assert sentence in refusal("traces", *words), words


def test_too_many_changes_are_refused(world: SimulatedService) -> None:
    body = {"name": "a", "place": "aws", "gap_seconds": 600, "runs": [[True, 1]]}
    post = world.http.post

    long = post("/v1/traces", json={**body, "runs": [[True, 1], [False, 1]] * MAX_RUNS})
    negative = post("/v1/traces", json={**body, "runs": [[True, -1]]})
    huge = post("/v1/traces", json={**body, "runs": [[True, 10**9]]})
    slow = post("/v1/traces", json={**body, "gap_seconds": 1e9})
    odd = post("/v1/traces", json={**body, "hardware": "A B"})

    assert [each.status_code for each in (long, negative, huge, slow, odd)] == [400] * 5
    assert "at least one tick" in negative.json()["detail"]
    assert "split it" in huge.json()["detail"]
    assert "below a week" in slow.json()["detail"]
    assert "no kind of node" in odd.json()["detail"]
