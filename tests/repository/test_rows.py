"""Every row of the reference is where it says, can be typed, and is proven by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import typer
from holdfast.cli.app import app
from support.tables import for_each

ROOT = Path(__file__).parents[2]
GROUPS = {"T": 13, "I": 4, "P": 13, "N": 6, "C": 13, "M": 12, "$": 4, "R": 6, "G": 11}
"""How many rows each group has."""
ROW = re.compile(r"^\| (\S+) \| ([^|]+) \| `([^`]+)` \| `([^`]+)` \| `([^`:]+)::(\w+)` \|$", re.MULTILINE)  # fmt: skip
ROWS = ROW.findall((ROOT / "docs/reference/rows.md").read_text())


def names() -> set[str]:
    return {f"{group}{n}" for group, count in GROUPS.items() for n in range(1, count + 1)}


def test_every_row_is_there_once() -> None:
    told = [row[0] for row in ROWS]
    lines = [line for line in (ROOT / "docs/reference/rows.md").read_text().splitlines() if line.startswith("| ")]  # fmt: skip

    assert len(told) == len(set(told)) == len(lines) - 1, "a line that does not read as a row"
    assert set(told) == names()


@for_each(ROWS)
def test_a_row_is_where_it_says_and_its_test_exists(told: tuple[str, ...]) -> None:
    _, _, where, command, file, test = told
    tree = ast.parse((ROOT / file).read_text())

    assert (ROOT / where).is_file(), where
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, test
    assert command.split(maxsplit=1)[0] in {"holdfast", "holdfast-worker", "make", "curl"}, command


def test_commands_of_rows_exist() -> None:
    group = typer.main.get_command(app)
    known = set(group.commands) | {"-h"}  # type: ignore[attr-defined]  # typer's own group

    typed = [command.split()[1] for _, _, _, command, _, _ in ROWS if command.startswith("holdfast ")]  # fmt: skip

    assert set(typed) <= known
