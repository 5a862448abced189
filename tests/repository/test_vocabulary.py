"""The vocabulary of names and help: terms of the field, one for each concept."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer
from holdfast.cli.app import app

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for top in ("service", "worker") for p in (ROOT / top).rglob("*.py"))

RETIRED = {  # Word in a name: the term that replaced it.
    "accord": "collective",
    "arena": "staging buffer",
    "chapter": "placement",
    "courier": "report sender",
    "custodian": "audit anchor",
    "depot": "checkpoint bucket",
    "diary": "attempt history",
    "doer": "actor",
    "doorstep": "service client",
    "epitaph": "exit report",
    "errand": "background task",
    "forebear": "parent job",
    "heart": "controller thread",
    "inquest": "hang inspection",
    "interlude": "step boundary",
    "janitor": "checkpoint collector",
    "keeper": "checkpointer",
    "mustering": "registration",
    "parcel": "report archive",
    "postbox": "store relay",
    "purse": "budget balance",
    "saver": "writer",
    "sighting": "observation",
    "tale": "timeline",
    "tariff": "rate",
    "testimony": "step logs",
    "toll": "preemption cost",
    "verdict": "decision",
    "weather": "spot market",
}
VERBS_OF_SPEECH = {"told", "tell", "tells", "said", "say", "says", "hear", "heard", "hears"}
CONTRACTS = {  # Names on the wire, in tables, or of public schemas.
    "service/holdfast/domain/events/base.py:JANITOR",
    "service/holdfast/domain/billing/running_cost.py:tariffs",
    "service/holdfast/domain/jobs/crash_loop.py:said",
    "service/holdfast/doctor/findings.py:told",
    "service/holdfast/api/routes/preemptions.py:list_tolls",
    "service/holdfast/api/routes/planning.py:tell_loss",
    "service/holdfast/api/routes/planning.py:tell_cadence",
}


def parts(name: str) -> set[str]:
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")
    return {*words, *(word.removesuffix("s") for word in words)}


def definitions(path: Path) -> Iterator[str]:
    """Yield the names of a module, its classes, functions and attributes of classes."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
            yield from (each.target.id for each in fields if isinstance(each.target, ast.Name))


def test_names_use_no_retired_vocabulary() -> None:
    found = []
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        for name in definitions(path):
            words = parts(name)
            found += [
                f"{place}:{name} ({word}: {RETIRED[word]})" for word in words & RETIRED.keys()
            ]
            if words & VERBS_OF_SPEECH:
                found.append(f"{place}:{name} (use the verb of the mechanism: report, log, read)")

    assert [each for each in found if each.split(" ")[0] not in CONTRACTS] == []


VERBS = {
    "Add",
    "Archive",
    "Back",
    "Cancel",
    "Change",
    "Check",
    "Compare",
    "Compute",
    "Create",
    "Delete",
    "Disable",
    "Downgrade",
    "Enable",
    "Estimate",
    "Explain",
    "Export",
    "Import",
    "List",
    "Make",
    "Manage",
    "Pack",
    "Pause",
    "Preempt",
    "Print",
    "Rebuild",
    "Remove",
    "Repeat",
    "Replace",
    "Replay",
    "Restore",
    "Resume",
    "Revoke",
    "Run",
    "Save",
    "Send",
    "Set",
    "Show",
    "Stop",
    "Submit",
    "Upgrade",
    "Verify",
    "Write",
}
"""First words of help texts."""


def commands(group: typer.core.TyperGroup, path: str) -> Iterator[tuple[str, str]]:
    context = group.make_context("holdfast", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command.help or ""
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, f"{path} {name}")


def test_help_texts_begin_with_a_verb() -> None:
    wrong = [
        f"{name}: {text.splitlines()[0] if text else '(none)'}"
        for name, text in commands(typer.main.get_command(app), "holdfast")
        if text.split(" ")[0] not in VERBS
    ]

    assert wrong == []
