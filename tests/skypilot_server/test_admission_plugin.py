"""The admission plugin of a started server: installed, updated, or missing if not writable."""

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
    record = json.loads(harness.server_dir.record.read_text())
    harness.server_dir.record.write_text(json.dumps({**record, "at_start": "of an older Holdfast"}))
    module = harness.interpreter.packages / "holdfast_gate.py"
    module.write_text("# of an older Holdfast\n")

    harness.open()

    assert harness.pid != first.pid
    assert not is_alive(first)
    assert module.read_bytes() == skypilot_server.SOURCE.read_bytes()
    assert f"wrote {module}" in harness.output
    assert "because settings that it reads only at startup have changed" in harness.output
    assert "jobs continue" in harness.output


def test_unwritable_plugin_is_reported_with_its_consequence(
    harness: ServerDirHarness,
) -> None:
    unwritable = (
        harness.interpreter.python / "packages"
    )  # A directory cannot be created below a file.
    harness.interpreter.play(packages=unwritable)

    harness.open()

    assert configuration(harness.server_dir.home)["admin_policy"] == GATE
    assert f"cannot write {unwritable} (Not a directory)" in harness.output
    assert "jobs are not recovered and launches fail" in harness.output


def test_plugin_replaces_policy_url_once_writable(
    harness: ServerDirHarness,
) -> None:
    harness.interpreter.play(packages=harness.interpreter.python / "packages")
    harness.open()
    first = harness.pid
    harness.interpreter.play()

    harness.open()

    assert harness.pid != first
    assert configuration(harness.server_dir.home)["admin_policy"] == "holdfast_gate.Gate"
