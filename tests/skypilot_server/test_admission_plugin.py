"""The gate of a server that is started here: put in place, replaced, and done without where it cannot be written."""

from __future__ import annotations

import json

import psutil
from holdfast import skypilot_server
from support.skypilot.fake_interpreter import configuration
from support.skypilot.server_dir import GATE, ServerDirHarness, is_alive


def test_changed_policy_url_is_read_without_server_restart(
    harness: ServerDirHarness,
) -> None:
    harness.open()
    first = harness.pid

    harness.open(GATE.replace("secret", "other"))

    assert harness.pid == first
    assert harness.gate_address.read_text() == GATE.replace("secret", "other") + "\n"


def test_changed_plugin_restarts_the_server_with_a_notice(
    harness: ServerDirHarness,
) -> None:
    harness.open()
    first = psutil.Process(harness.pid)
    record = json.loads(harness.place.record.read_text())
    harness.place.record.write_text(json.dumps({**record, "at_start": "of an older Holdfast"}))
    module = harness.interpreter.packages / "holdfast_gate.py"
    module.write_text("# of an older Holdfast\n")

    harness.open()

    assert harness.pid != first.pid
    assert not is_alive(first)
    assert module.read_bytes() == skypilot_server.SOURCE.read_bytes()
    assert f"wrote {module}" in harness.told
    assert "because settings that it reads only at startup have changed" in harness.told
    assert "jobs continue" in harness.told


def test_unwritable_plugin_is_reported_with_its_consequence(
    harness: ServerDirHarness,
) -> None:
    nowhere = harness.interpreter.python / "packages"  # Below a file there is no folder.
    harness.interpreter.play(packages=nowhere)

    harness.open()

    assert configuration(harness.place.home)["admin_policy"] == GATE
    assert f"cannot write {nowhere} (Not a directory)" in harness.told
    assert "jobs are not recovered and launches fail" in harness.told


def test_plugin_replaces_policy_url_once_writable(
    harness: ServerDirHarness,
) -> None:
    harness.interpreter.play(packages=harness.interpreter.python / "packages")
    harness.open()
    first = harness.pid
    harness.interpreter.play()

    harness.open()

    assert harness.pid != first
    assert configuration(harness.place.home)["admin_policy"] == "holdfast_gate.Gate"
