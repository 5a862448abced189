"""The public contract of a release as JSON, and a check for incompatible changes.

`make contract` records the contract of this version in tests/repository/contract/.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import typer
from holdfast.api.app import describe
from holdfast.cli.app import app
from holdfast.domain.events import KINDS
from holdfast.store.tables.base import metadata
from holdfast_worker.protocol.commit_summary import FORMAT, OLDEST_FORMAT
from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.protocol.release import version
from holdfast_worker.protocol.report_archive import ArchiveKey
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.protocol.spool_segments import Segment
from pydantic import TypeAdapter

Json = dict[str, Any]


def promises() -> Json:
    """Return the API, events, reports, formats, tables and commands of this version."""
    report = Report(1, 1, "", ReportKind.PROGRESS, {})
    return {
        "version": version(),
        "api": describe(),
        "events": {kind: TypeAdapter(cls).json_schema() for kind, cls in KINDS.items()},
        "words": {
            "reports": sorted(ReportKind),
            "spool": sorted(json.loads(report.line())),
            "parcels": [ArchiveKey("attempt-1", 1, 2).path],
            "segments": [Segment(1, 1).name, Segment(1, 2).name],
            "environment": sorted(Env),
            "exit_codes": sorted(f"{code.name}={code.value}" for code in Exit),
        },
        "checkpoint_format": FORMAT,
        "oldest_checkpoint_format": OLDEST_FORMAT,
        "tables": {
            table.name: {
                column.name: {
                    "type": str(column.type),
                    "is_optional": bool(column.nullable or column.server_default is not None),
                }
                for column in table.columns
            }
            for table in metadata.sorted_tables
        },
        "commands": dict(_commands(typer.main.get_command(app), "holdfast")),
    }


def _commands(command: Any, name: str) -> Iterator[tuple[str, Json]]:
    for word, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{name} {word}")
    yield (
        name,
        {
            option: param.required
            for param in command.params
            for option in (param.opts if param.param_type_name == "option" else [param.name])
        },
    )


def broken(before: Json, now: Json) -> list[str]:
    """List the changes that break a client, worker or replica of the earlier version."""
    return [
        *_api(before["api"], now["api"]),
        *_events(before["events"], now["events"]),
        *(
            f"{kind}: {word!r} was removed"
            for kind, words in before["words"].items()
            for word in words
            if word not in now["words"][kind]
        ),
        *_tables(before["tables"], now["tables"]),
        *_options(before["commands"], now["commands"]),
        *(
            ["checkpoints of the recorded format cannot be read"]
            if not now["oldest_checkpoint_format"]
            <= before["checkpoint_format"]
            <= now["checkpoint_format"]
            else []
        ),
    ]


def _api(before: Json, now: Json) -> Iterator[str]:
    for path, methods in before["paths"].items():
        for method, was in methods.items():
            where = f"{method.upper()} {path}"
            here = now["paths"].get(path, {}).get(method)
            if here is None:
                yield f"{where} was removed"
                continue
            yield from _parameters(was, here, where)
            asked = [
                _json_of(each.get("requestBody", {})) if each.get("requestBody") else {}
                for each in (was, here)
            ]
            yield from _Schemas(before, now, is_answer=False).broken(*asked, where)
            for code, reply in was["responses"].items():
                if not code.startswith("2"):
                    continue
                if code not in here["responses"]:
                    yield f"{where}: the answer {code} was removed"
                    continue
                result = _json_of(reply), _json_of(here["responses"][code])
                yield from _Schemas(before, now, is_answer=True).broken(
                    *result, f"{where} -> {code}"
                )


def _json_of(part: Json) -> Json:
    schema: Json = part.get("content", {}).get("application/json", {}).get("schema", {})
    return schema


def _parameters(was: Json, here: Json, where: str) -> Iterator[str]:
    before, now = (
        {(p["in"], p["name"]): p for p in each.get("parameters", [])} for each in (was, here)
    )
    yield from (f"{where}: {name} was removed" for _, name in before.keys() - now.keys())
    for key, parameter in now.items():
        if parameter.get("required") and not before.get(key, {}).get("required"):
            yield f"{where}: {key[1]} is required now"


class _Schemas:
    """Compares the schemas of two API descriptions, for requests or for responses."""

    def __init__(self, before: Json, now: Json, *, is_answer: bool) -> None:
        self._before = before
        self._now = now
        self._is_answer = is_answer
        self._seen: set[tuple[str, str]] = set()

    def broken(self, was: Json, here: Json, where: str) -> Iterator[str]:
        """Yield the incompatible changes of a schema and of the schemas nested in it."""
        pair = was.get("$ref", ""), here.get("$ref", "")
        if all(pair):
            if pair in self._seen:
                return
            self._seen.add(pair)
        was, here = _resolved(self._before, was), _resolved(self._now, here)
        old, new = _types(self._before, was), _types(self._now, here)
        if not (new <= old if self._is_answer else old <= new):
            yield f"{where}: the type was {'|'.join(sorted(old))} and is {'|'.join(sorted(new))}"
        if gone := [each for each in was.get("enum", []) if each not in here.get("enum", [each])]:
            yield f"{where}: the values {gone} were removed"
        yield from self._objects(was, here, where)
        for word in ("items", "additionalProperties"):
            if isinstance(was.get(word), dict) and isinstance(here.get(word), dict):
                yield from self.broken(was[word], here[word], f"{where}[]")
        for one, other in zip(_choices(was), _choices(here), strict=False):
            yield from self.broken(one, other, where)

    def _objects(self, was: Json, here: Json, where: str) -> Iterator[str]:
        before, now = was.get("properties", {}), here.get("properties", {})
        needed, needed_now = set(was.get("required", [])), set(here.get("required", []))
        for name, schema in before.items():
            if name not in now:
                yield f"{where}.{name} was removed"
                continue
            yield from self.broken(schema, now[name], f"{where}.{name}")
        if was:
            # An older service omits new fields in responses, and an older client in requests.
            yield from (f"{where}.{n} is new and required" for n in needed_now - before.keys())
            lost = (needed - needed_now) if self._is_answer else (needed_now & before.keys()) - needed  # fmt: skip
            word = "may be absent now" if self._is_answer else "is required now"
            yield from (f"{where}.{name} {word}" for name in lost & now.keys())


def _resolved(root: Json, schema: Json) -> Json:
    while "$ref" in schema:
        found: Any = root
        for word in schema["$ref"].removeprefix("#/").split("/"):
            found = found[word]
        schema = found
    return schema


def _choices(schema: Json) -> list[Json]:
    return [each for each in schema.get("anyOf", []) if each.get("type") != "null"]


def _types(root: Json, schema: Json) -> frozenset[str]:
    if "anyOf" in schema:
        parts = (_types(root, _resolved(root, each)) for each in schema["anyOf"])
        return frozenset().union(*parts)
    return frozenset({schema.get("type", "any")})


def _events(before: Json, now: Json) -> Iterator[str]:
    """Yield incompatible event schemas: stored events are never migrated."""
    for kind, schema in before.items():
        if kind not in now:
            yield f"the event {kind} was removed"
        else:
            yield from _Schemas(schema, now[kind], is_answer=False).broken(
                schema, now[kind], f"event {kind}"
            )


def _tables(before: Json, now: Json) -> Iterator[str]:
    for table, columns in before.items():
        here = now.get(table, {})
        for column, was in columns.items():
            if column not in here:
                yield f"{table}.{column} was removed"
            elif here[column]["type"] != was["type"]:
                yield f"{table}.{column} was {was['type']} and is {here[column]['type']}"
        for column in here.keys() - columns.keys():
            if not here[column]["is_optional"]:
                yield f"{table}.{column} is new, and a replica of the version before cannot fill it"


def _options(before: Json, now: Json) -> Iterator[str]:
    for command, options in before.items():
        if command not in now:
            yield f"{command} was removed"
            continue
        yield from (f"{command} {o} was removed" for o in options if o not in now[command])
        yield from (
            f"{command} {option} is required now"
            for option, required in now[command].items()
            if required and not options.get(option)
        )


if __name__ == "__main__":
    json.dump(promises(), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
