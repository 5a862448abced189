"""A job file, read: YAML text becomes a `JobSpec`, or a list of what is wrong with it, each with its place.

Env values are taken as they are written (`no` stays `no`, `1e3` stays `1e3`): YAML's guesses about types are for
numbers and switches, not for what a program reads from its environment.
"""

from __future__ import annotations

import difflib
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from holdfast_worker.wire import Env, SkyEnv
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.domain.spec import JobFile, JobSpec
from holdfast.domain.stale import put_right
from holdfast.errors import BadJobFile, Flaw

MAX_BYTES: Final = 256 * 1024
"""Longest job file. Smaller refuses real scripts in `run`; bigger lets one request fill the journal."""

_RESERVED: Final = (frozenset(Env) | frozenset(SkyEnv)) - {Env.SEED, SkyEnv.NUM_GPUS_PER_NODE}
_TYPED: Final = frozenset(
    {"name", "num_nodes", "workdir", "setup", "run", "envs", "resources", "holdfast"}
)


@dataclass(frozen=True, slots=True)
class Understood:
    """A job file after reading."""

    spec: JobSpec
    notes: tuple[str, ...]
    """What was put right, as sentences for the person who wrote it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """What the command line says over the file."""

    name: str | None = None
    """None: the name of the file stands."""
    envs: Mapping[str, str] | None = None
    """Values that replace or join those of the file."""
    base_dir: str | None = None
    """Folder that a relative `workdir` is relative to; None where there is none, as through the plain API."""


def read(text: str, overrides: Overrides = Overrides()) -> Understood:
    """The job that a file describes.

    Raises:
        BadJobFile: with every mistake that was found, each with a JSON pointer and a way out.
    """
    raw = _load(text)
    written = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - builds nothing but strings
    envs = _envs(raw.get("envs") or {}, written.get("envs") or {}, overrides.envs or {})
    raw, notes = put_right(raw)
    if isinstance(raw.get("name"), bool | int | float):
        raw["name"] = written["name"]
    if overrides.name is not None:
        raw["name"] = overrides.name
    try:
        file = JobFile.model_validate({**raw, "envs": envs})
    except ValidationError as error:
        flaws = {flaw.pointer: flaw for flaw in map(_flaw, reversed(error.errors()))}
        raise BadJobFile(tuple(reversed(flaws.values()))) from error
    return Understood(_spec(file, raw, overrides), notes)


def _load(text: str) -> dict[str, Any]:
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise BadJobFile(
            (
                Flaw(
                    "#",
                    f"the job file is larger than {MAX_BYTES // 1024} KiB; move data into workdir",
                ),
            )
        )
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadJobFile(
            (Flaw("#", f"not YAML: {where}{error.problem or 'cannot be parsed'}"),)
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise BadJobFile((Flaw("#", f"not YAML: {error}"),)) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = f"{len(documents)} documents" if len(documents) > 1 else "no mapping"
        raise BadJobFile(
            (Flaw("#", f"a job file is one mapping such as `run: ...`; found {found}"),)
        )
    raw: dict[Any, Any] = documents[0]
    if odd := [key for key in raw if not isinstance(key, str)]:
        raise BadJobFile(
            (Flaw("#", f"{odd[0]!r} is not a word of a job file; put it in quotes or remove it"),)
        )
    return raw


def _envs(declared: Any, written: dict[str, Any], overrides: Mapping[str, str]) -> dict[str, str]:
    """Env values as they are written; `declared` is the same mapping with YAML's guesses about types."""
    if not isinstance(declared, dict):
        raise BadJobFile((Flaw("#/envs", "write envs as a mapping of names to values"),))
    given = dict(overrides)
    flaws: list[Flaw] = []
    for (name, value), plain in zip(declared.items(), written.values(), strict=True):
        pointer = f"#/envs/{name}"
        if value is None and name not in given:
            flaws.append(Flaw(pointer, f"has no value; write one, or submit with --env {name}=..."))
        elif isinstance(value, dict | list):
            flaws.append(Flaw(pointer, "must be one text; put it in quotes"))
        else:
            given.setdefault(str(name), plain)
    for name in given:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            flaws.append(
                Flaw(
                    f"#/envs/{name}",
                    "is not a name that a shell can use; take letters, digits and _",
                )
            )
        elif name in _RESERVED:
            flaws.append(Flaw(f"#/envs/{name}", "is set by the launcher; take another name"))
    if flaws:
        raise BadJobFile(tuple(flaws))
    return given


def _spec(file: JobFile, raw: dict[str, Any], overrides: Overrides) -> JobSpec:
    run = shlex.join(file.run) if isinstance(file.run, list) else file.run
    return JobSpec(
        name=file.name or "job",
        num_nodes=file.num_nodes,
        workdir=_workdir(file.workdir, overrides.base_dir),
        setup=file.setup,
        run=run,
        envs=file.envs,
        resources=dict(raw.get("resources") or {}),
        more={key: value for key, value in raw.items() if key not in _TYPED and value is not None},
        holdfast=file.holdfast,
    )


def _workdir(workdir: str | None, base_dir: str | None) -> str | None:
    if workdir is None or workdir.startswith("/"):
        return workdir
    if base_dir is None:
        flaw = Flaw(
            "#/workdir",
            f"{workdir!r} is relative, and the request has no base_dir; write an absolute folder",
        )
        raise BadJobFile((flaw,))
    return posixpath.normpath(posixpath.join(base_dir, workdir))


def _flaw(detail: ErrorDetails) -> Flaw:
    # Unions add their own steps to the place; what a person wrote has only keys and numbers.
    steps = [
        str(step)
        for step in detail["loc"]
        if "[" not in str(step) and step not in ("str", "list", "dict")
    ]
    pointer = "#" + "".join(f"/{step}" for step in steps)
    match detail["type"]:
        case "extra_forbidden":
            return Flaw(pointer, _unknown(steps))
        case "missing":
            return Flaw(pointer, "is missing; a job needs it")
        case "string_pattern_mismatch" if steps[-1:] == ["store"]:
            return Flaw(
                pointer,
                f"{detail['input']!r} is not a store; write s3://bucket/prefix or file:///folder",
            )
        case "value_error":
            return Flaw(pointer, detail["msg"].removeprefix("Value error, "))
        case _:
            return Flaw(
                pointer, f"{detail['input']!r}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"
            )


def _unknown(steps: list[str]) -> str:
    """What to say of a word that is not known: the nearest one that is, or all of a short list."""
    model: Any = JobFile
    for step in steps[:-1]:
        model = _model_of(model.model_fields[step].annotation)
    known = sorted(model.model_fields)
    if near := difflib.get_close_matches(steps[-1], known, n=1, cutoff=0.6):
        return f"is not known; did you mean {near[0]!r}?"
    return f"is not known here; known are {', '.join(known)}"


def _model_of(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found: type[BaseModel] = next(
        item
        for item in annotation.__args__
        if isinstance(item, type) and issubclass(item, BaseModel)
    )
    return found
