"""Every Python example of the page about the SDK runs against a service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from holdfast.client import Client
from support.simulated_service import JOB_FILE, SimulatedService

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "python-sdk.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_examples_of_the_page_run(
    world: SimulatedService,
    url: str,
    passing_time: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setenv("HOLDFAST_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(f"{JOB_FILE}envs: {{LR: '1'}}\n")

    for number, text in enumerate(EXAMPLES):
        exec(compile(text, f"{PAGE.name}, example {number + 1}", "exec"), {})
        with Client(url) as client:  # A name of several live jobs would be ambiguous.
            for job in client.jobs.find():
                client.jobs.wait(job.id, poll_s=0.05)

    printed = capsys.readouterr().out
    assert len(EXAMPLES) >= 7
    assert re.search(r"^succeeded \d+ \$\d+\.\d\d$", printed, re.MULTILINE)
    assert "bad-job-file #/resources/acelerators" in printed
    assert "['succeeded', 'succeeded', 'succeeded']" in printed
