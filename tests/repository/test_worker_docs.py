"""The reference describes exactly the commands and options of `holdfast-worker`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from holdfast_worker.__main__ import COMMANDS, parser

PAGE = (Path(__file__).parents[2] / "docs/reference/worker-cli.md").read_text()


def commands(group: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """All commands by name."""
    below = [each for each in group._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        return {group.prog: group}
    return {
        name: command
        for inner in below[0].choices.values()
        for name, command in commands(inner).items()
    }


FOUND = commands(parser([*COMMANDS]))
SECTIONS = dict(
    re.findall(r"^## (holdfast-worker .+)\n((?:.|\n)*?)(?=^## |\Z)", PAGE, re.MULTILINE)
)


@pytest.mark.parametrize("name", FOUND)
def test_every_command_has_its_section_with_every_option(name: str) -> None:
    options = {
        spelling
        for action in FOUND[name]._actions
        for spelling in action.option_strings
        if spelling not in {"-h", "--help"}
    }

    documented = set(re.findall(r"^\| `(-[^`]+)` \|", SECTIONS[name], re.MULTILINE))

    assert documented == options


def test_described_worker_commands_exist() -> None:
    assert set(SECTIONS) == set(FOUND)
