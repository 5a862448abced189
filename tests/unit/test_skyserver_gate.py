"""The gate of a server that is started here: put in place, replaced, and done without where it cannot be written."""

from __future__ import annotations

import json

import psutil
from holdfast import skypilot_server
from skystage import GATE, Stage, lives
from understudy import configuration


def test_another_address_of_the_gate_is_read_by_the_server_that_runs(stage: Stage) -> None:
    stage.open()
    first = stage.pid

    stage.open(GATE.replace("secret", "other"))

    assert stage.pid == first
    assert stage.gate_address.read_text() == GATE.replace("secret", "other") + "\n"


def test_another_edition_of_the_gate_starts_the_server_anew_and_says_why(stage: Stage) -> None:
    stage.open()
    first = psutil.Process(stage.pid)
    record = json.loads(stage.place.record.read_text())
    stage.place.record.write_text(json.dumps({**record, "at_start": "of an older Holdfast"}))
    module = stage.understudy.packages / "holdfast_gate.py"
    module.write_text("# of an older Holdfast\n")

    stage.open()

    assert stage.pid != first.pid
    assert not lives(first)
    assert module.read_bytes() == skypilot_server.SOURCE.read_bytes()
    assert f"wrote {module}" in stage.told
    assert "starts anew, as its configuration or its gate has changed" in stage.told
    assert "jobs go on" in stage.told


def test_where_the_gate_cannot_be_written_its_address_does_and_what_that_costs_is_told(
    stage: Stage,
) -> None:
    nowhere = stage.understudy.python / "packages"  # Below a file there is no folder.
    stage.understudy.play(packages=nowhere)

    stage.open()

    assert configuration(stage.place.home)["admin_policy"] == GATE
    assert f"{nowhere} cannot be written (Not a directory)" in stage.told
    assert "jobs are not recovered and nobody launches" in stage.told


def test_a_gate_that_can_be_written_later_takes_the_place_of_its_address(stage: Stage) -> None:
    stage.understudy.play(packages=stage.understudy.python / "packages")
    stage.open()
    first = stage.pid
    stage.understudy.play()

    stage.open()

    assert stage.pid != first
    assert configuration(stage.place.home)["admin_policy"] == "holdfast_gate.Gate"
