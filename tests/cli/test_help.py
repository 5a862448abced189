"""The help of the command line: grouped commands, each with valid examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from holdfast.cli.app import GROUPS, app
from holdfast.cli.usage.examples import EXAMPLES
from typer.testing import CliRunner

REFERENCE = Path(__file__).parents[2] / "docs/reference/cli.md"


def leaves(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every executable command, by its name below `holdfast`."""
    if not hasattr(group, "commands") or group.invoke_without_command:
        yield name, group
    for word, inner in getattr(group, "commands", {}).items():
        yield from leaves(inner, f"{name} {word}".strip())


LEAVES = dict(leaves(typer.main.get_command(app)))
LEAVES.pop("", None)


def test_help_lists_every_command_in_its_group() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout

    for group, names in GROUPS.items():
        section = text.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^  (\S+) ", section, re.MULTILINE) == list(names)
        assert "..." not in section, "a sentence is truncated"


def test_every_command_has_one_to_three_examples() -> None:
    assert set(EXAMPLES) == set(LEAVES)
    assert all(1 <= len(examples) <= 3 for examples in EXAMPLES.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_parse_and_appear_in_help_and_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.jobs.JobsClient.resolve", lambda _, job: job)
    section = REFERENCE.read_text().partition(f"\n### `holdfast {name}`\n")[2]
    section = section.partition("\n### ")[0]
    shown = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=200).stdout

    for example in EXAMPLES[name]:
        arguments = shlex.split(re.split(r" [<>] ", example)[0])[1 + len(name.split()) :]
        LEAVES[name].make_context(name, arguments)
        assert f"\n    {example}\n" in shown
        assert f"\n{example}\n" in section


def test_reference_has_the_groups_of_the_help() -> None:
    page = REFERENCE.read_text()

    for group, names in GROUPS.items():
        section = page.partition(f"\n## {group}\n")[2].partition("\n## ")[0]
        listed = re.findall(r"^### `holdfast (\S+?)[ `]", section, re.MULTILINE)
        assert list(dict.fromkeys(listed)) == list(names)
