"""Logs of a job on the command line, for diagnosis: failures and missing ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from holdfast.cli.app import app
from holdfast.ports import LogSource
from support.simulated_service import HidingCloud, SimulatedService, served
from typer.testing import CliRunner, Result

PRINTED = {
    0: b"[RANK 0] WORLD_SIZE=16\n[RANK 1] WORLD_SIZE=16\nstep 1 loss 0.5\nOSError: no such file\n",
    1: b"[RANK 3] WORLD_SIZE=16\nTraceback (most recent call last):\n  line 3\nValueError: no\n",
}


class CloudWithOutput(HidingCloud):
    """A cloud whose nodes have printed output."""

    async def logs(self, key: str) -> Sequence[LogSource]:
        return [
            LogSource(attempt=1, node=node, rank=None, size_bytes=len(text))
            for node, text in PRINTED.items()
        ]

    def read_log(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        return PRINTED[source.node][offset : offset + limit]


class JobCommands:
    """A command line with commands about one job."""

    def __init__(self, job: str) -> None:
        self.job = job

    def logs(self, *options: str) -> Result:
        return CliRunner().invoke(app, ["logs", self.job, *options])

    def ranks(self) -> Result:
        return CliRunner().invoke(app, ["ranks", self.job])


@pytest.fixture
def commands(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobCommands]:
    job = world.submit()["id"]
    world.until(job, "training")
    world.cloud.__class__ = CloudWithOutput
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield JobCommands(job)


def test_failure_lines_are_found_in_all_logs(commands: JobCommands) -> None:
    output = commands.logs("--errors").stdout

    assert len(output.splitlines()) == 2
    assert "OSError: no such file" in output
    assert "Traceback (most recent call last):" in output


def test_missing_ranks_are_named(commands: JobCommands) -> None:
    result = commands.logs("--ranks")
    as_json = commands.logs("--ranks", "--json")

    assert (
        result.stdout
        == "attempt 1: 3/16 ranks seen\n  node 0: 0-1\n  node 1: 3\nmissing: 2, 4-15\n"
    )
    assert '"missing": [' in as_json.stdout
    assert commands.ranks().stdout == result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--errors", "--grep", "x"), "--errors and --grep exclude each other"),
        (("--errors", "--follow"), "--errors and --follow exclude each other"),
        (("--ranks", "--node", "1"), "--ranks covers all nodes and ranks"),
        (("--ranks", "--errors"), "--ranks covers all nodes and ranks"),
    ],
)
def test_conflicting_log_options_are_refused(
    commands: JobCommands, options: tuple[str, ...], message: str
) -> None:
    result = commands.logs(*options)

    assert result.exit_code != 0
    assert message in str(result.exception)


def test_unknown_attempt_is_refused(commands: JobCommands) -> None:
    result = commands.logs("--ranks", "--attempt", "9")

    assert "has 1 attempts; attempt 9 does not exist" in str(result.exception)
