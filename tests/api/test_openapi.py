"""The API matches its description: the copy in the docs is current, all responses conform."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from holdfast.api.app import describe
from support.repetitions import FULL, repeat_count
from support.simulated_service import SimulatedService, served

CASES = repeat_count(150, 2000)
"""Minimum number of valid, invalid and stateful requests."""
PHASES = "examples,coverage,fuzzing,stateful" if FULL else "examples,fuzzing,stateful"
COPY = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def test_the_copy_in_the_docs_is_current() -> None:
    assert json.loads(COPY.read_text()) == describe(), (
        "the API has changed; run: .venv/bin/python -m holdfast.api > docs/reference/openapi.json"
    )


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_answers_conform_to_the_openapi_description(world: SimulatedService) -> None:
    """Schemathesis sends valid and invalid requests; every response must match the description."""
    world.submit()
    # Schemathesis also creates users; a request from this machine is still accepted without a
    # token.
    world.app.state.services = replace(world.services, trust_loopback=True)

    with served(world) as url:
        fuzzed = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli"),
                *("--config-file", str(Path(__file__).with_name("schemathesis.toml"))),
                *("run", f"{url}/openapi.json"),
                # A stream does not end, and only its first message could be validated.
                *("--exclude-path-regex", "stream$", "--phases", PHASES),
                # A job file is text with a grammar of its own, which the description cannot
                # express.
                *("--exclude-checks", "positive_data_acceptance"),
                *("--max-examples", str(repeat_count(3, 15)), "--seed", "1", "--no-color"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    assert fuzzed.returncode == 0, fuzzed.stdout + fuzzed.stderr
    [cases] = re.findall(r"(\d+) generated", fuzzed.stdout)
    assert int(cases) >= CASES
