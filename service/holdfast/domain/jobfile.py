"""A job file, read: YAML text becomes a `JobSpec`, or a list of what is wrong with it, each with its place.

Env values are taken as they are written (`no` stays `no`, `1e3` stays `1e3`): YAML's guesses about types are for
numbers and switches, not for what a program reads from its environment.
"""

from __future__ import annotations

import difflib
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import yaml
from holdfast_worker.wire import Env, SkyEnv
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.domain.spec import NOT_TEXT, JobFile, JobSpec
from holdfast.domain.stale import put_right
from holdfast.errors import BadJobFile, Flaw

MAX_BYTES: Final = 256 * 1024
"""Longest job file. Smaller refuses real scripts in `run`; bigger lets one request fill the journal."""
MAX_DEPTH: Final = 64
"""Deepest nesting. Smaller refuses no task that was ever seen; bigger is met by Python's own limit on recursion."""
MAX_EXPANDED: Final = 4 * MAX_BYTES
"""Characters and values after aliases are written out: a few lines of aliases can stand for a terabyte."""

_TOO_DEEP: Final = "is nested too deeply, or repeats too much through aliases; write it plainly"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BIGGEST: Final = 2**63
_NULL: Final = "tag:yaml.org,2002:null"
_AS_WRITTEN: Final = frozenset({"name", "envs"})
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
    raw, nodes = _load(text)
    if flaws := tuple(_oddities({key: raw[key] for key in raw if key not in _AS_WRITTEN})):
        raise BadJobFile(flaws)
    envs, env_flaws = _envs(nodes.get("envs"), overrides.envs or {})
    raw, notes = put_right(raw)
    if isinstance(node := nodes.get("name"), yaml.ScalarNode) and raw["name"] is not None:
        raw["name"] = node.value
    if overrides.name is not None:
        raw["name"] = overrides.name
    file, file_flaws = _validate({**raw, "envs": envs})
    flaws = (*env_flaws, *file_flaws, *_check_workdir(raw.get("workdir"), overrides.base_dir))
    if file is None or flaws:
        raise BadJobFile(flaws)
    return Understood(_spec(file, raw, overrides), notes)


def _load(text: str) -> tuple[dict[str, Any], dict[str, yaml.Node]]:
    """The document, and the nodes of its words as they are written."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise _wrong(f"the job file is larger than {MAX_BYTES // 1024} KiB; move data into workdir")
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        documents = [yaml.SafeLoader("").construct_document(node) for node in nodes]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise _wrong(f"not YAML: {where}{error.problem or 'cannot be parsed'}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _wrong(f"not YAML: {error}") from error
    except RecursionError as error:
        raise _wrong(_TOO_DEEP) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = f"{len(documents)} documents" if len(documents) > 1 else "no mapping"
        raise _wrong(f"a job file is one mapping such as `run: ...`; found {found}")
    raw: dict[Any, Any] = documents[0]
    if odd := [key for key in raw if not isinstance(key, str)]:
        raise _wrong(f"{odd[0]!r} is not a word of a job file; put it in quotes or remove it")
    return raw, {key.value: value for key, value in nodes[0].value}


def _wrong(message: str) -> BadJobFile:
    return BadJobFile((Flaw("#", message),))


def _oddities(raw: dict[str, Any]) -> Iterator[Flaw]:
    """What YAML can say and no task can hold. What an alias repeats is counted wherever it is repeated."""
    room = MAX_EXPANDED
    waiting: list[tuple[str, int, Any]] = [("#", 0, raw)]
    while waiting:
        pointer, depth, value = waiting.pop()
        room -= 1 + (len(value) if isinstance(value, str) else 0)
        if depth > MAX_DEPTH or room < 0:
            yield Flaw("#", _TOO_DEEP)
            return
        match value:
            case dict():
                waiting += [(pointer, depth + 1, key) for key in value]
                waiting += [(f"{pointer}/{key}", depth + 1, item) for key, item in value.items()]
            case list():
                waiting += [(f"{pointer}/{n}", depth + 1, item) for n, item in enumerate(value)]
            case str() if _SURROGATE.search(value):
                yield Flaw(pointer, NOT_TEXT)
            case None | str() | bool() | date():
                pass
            case int() | float() if abs(value) < _BIGGEST:
                pass
            case int() | float():
                yield Flaw(pointer, "is a number without end; write one that a machine can hold")
            case _:
                yield Flaw(pointer, "is not plain text or a number; put it in quotes")


def _validate(raw: dict[str, Any]) -> tuple[JobFile | None, tuple[Flaw, ...]]:
    """The file, or None and why not."""
    try:
        return JobFile.model_validate(raw), ()
    except ValidationError as error:
        flaws = {flaw.pointer: flaw for flaw in map(_flaw, reversed(error.errors()))}
        # `run` may be a text or a list: of a list with one bad word, only the word is wrong.
        inner = {pointer.rpartition("/")[0] for pointer in flaws}
        return None, tuple(flaws[place] for place in reversed(flaws) if place not in inner)


def _envs(
    node: yaml.Node | None, overrides: Mapping[str, str]
) -> tuple[dict[str, str], tuple[Flaw, ...]]:
    """Env values as they are written, those of `overrides` over them, and what is wrong with any."""
    if node is not None and node.tag != _NULL and not isinstance(node, yaml.MappingNode):
        return {}, (Flaw("#/envs", "write envs as a mapping of names to values"),)
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    written: dict[str, yaml.Node] = {name.value: value for name, value in pairs}
    given = {n: v.value for n, v in written.items() if v.tag != _NULL} | dict(overrides)
    flaws: list[Flaw] = []
    for name, value in written.items():
        if value.tag == _NULL and name not in overrides:
            way_out = f"has no value; write one, or submit with --env {name}=..."
            flaws.append(Flaw(f"#/envs/{name}", way_out))
        elif not isinstance(value, yaml.ScalarNode):
            flaws.append(Flaw(f"#/envs/{name}", "must be one text; put it in quotes"))
            given.pop(name)
    for name in given:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            problem = "is not a name that a shell can use; take letters, digits and _"
            flaws.append(Flaw(f"#/envs/{name}", problem))
        elif name in _RESERVED:
            flaws.append(Flaw(f"#/envs/{name}", "is set by the launcher; take another name"))
    return given, tuple(flaws)


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


def _check_workdir(workdir: Any, base_dir: str | None) -> Iterator[Flaw]:
    if isinstance(workdir, str) and not workdir.startswith("/") and base_dir is None:
        problem = (
            f"{workdir!r} is relative, and the request has no base_dir; write an absolute folder"
        )
        yield Flaw("#/workdir", problem)


def _workdir(workdir: str | None, base_dir: str | None) -> str | None:
    if workdir is None or workdir.startswith("/"):
        return workdir
    assert base_dir is not None, "_check_workdir has refused it"
    return posixpath.normpath(posixpath.join(base_dir, workdir))


def _flaw(detail: ErrorDetails) -> Flaw:
    steps = [str(step) for step in detail["loc"]]
    if detail["type"] != "extra_forbidden":
        # Unions add their own steps to the place; what a person wrote has only keys and numbers.
        steps = [s for s in steps if "[" not in s and s not in ("str", "list", "dict")]
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
        case "string_unicode":
            return Flaw(pointer, NOT_TEXT)
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
