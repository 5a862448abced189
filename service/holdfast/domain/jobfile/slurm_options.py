"""What a job file says to Slurm alone: the words under `config.slurm`, and those of `resources` in sbatch's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast.domain.jobfile.accelerator_catalog import accelerators
from holdfast.domain.jobfile.resource_options import candidates
from holdfast.errors import Flaw

WORDS: Final = ("sbatch_options", "notice_s", "probe", "packages")
PROBES: Final = ("metadata", "import", "off")
OPTIONS: Final = frozenset(
    {
        *(
            "account",
            "begin",
            "constraint",
            "cpus-per-gpu",
            "cpus-per-task",
            "deadline",
            "dependency",
        ),
        *("distribution", "exclude", "exclusive", "gpus-per-node", "gres", "hint", "licenses"),
        *("mail-type", "mail-user", "mem", "mem-per-cpu", "mem-per-gpu", "nice", "nodelist"),
        *("oversubscribe", "partition", "prefer", "priority", "qos", "requeue", "reservation"),
        *("switches", "threads-per-core", "time", "time-min", "tmp", "wckey"),
    }
)
"""Options of sbatch that a job may give. The others say where its books are and how it is told, which is ours to say."""
NOTICE_S: Final = 120
"""Before the time limit. Smaller: a large checkpoint is cut off. Bigger: nodes leave that could train."""
_PLAIN: Final = re.compile(r"[ -~]{1,1000}")
_MEMORY: Final = re.compile(r"(\d+)\s*(?:gb?)?\+?", re.IGNORECASE)
_COUNT: Final = re.compile(r"(\d+)\+?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """What a task asks of Slurm."""

    options: Mapping[str, str | bool]
    """Of sbatch, by their long names; True where one has no value."""
    requeue: bool
    notice_s: int
    probe: str
    packages: tuple[str, ...] | None
    """That every node has to have; None: what a worker needs."""
    cluster: str
    """That is meant; empty for whichever there is."""

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> Self:
        """What a task asks for that `wrong_slurm` finds nothing wrong with."""
        resources = task.get("resources") or {}
        said = _said(task)
        given = {
            name: str(v) if v is not True else True for name, v in _options(said) if v is not False
        }
        head, cluster, partition = (*str(resources.get("infra") or "").split("/"), "", "")[:3]
        if head.lower() != "slurm":  # A job of somewhere else, rendered for Slurm.
            cluster = partition = ""
        options: dict[str, str | bool] = {
            **({"partition": partition} if partition not in {"", "*"} else {}),
            **_size(resources),
            **given,
        }
        requeue = options.pop("requeue", None)
        packages = said.get("packages")
        return cls(
            options=options,
            requeue=requeue is not None or dict(_options(said)).get("requeue") is not False,
            notice_s=int(said.get("notice_s") or NOTICE_S),
            probe=str(said.get("probe") or PROBES[0]),
            packages=None if packages is None else tuple(packages),
            cluster="" if cluster == "*" else cluster,
        )


def slurm_flaws(task: Mapping[str, Any]) -> Iterator[Flaw]:
    """What Slurm, or its launcher, would not understand."""
    resources = task.get("resources") or {}
    for word, pattern in (("cpus", _COUNT), ("memory", _MEMORY)):
        value = resources.get(word)
        if value is not None and not pattern.fullmatch(str(value)):
            yield Flaw(f"#/resources/{word}", f"{value!r} is no whole number; write one such as 16")
    if str(resources.get("infra") or "").count("/") > 2:
        yield Flaw("#/resources/infra", "has too many parts; write slurm/cluster/partition")
    if any(resources.get(word) for word in ("any_of", "ordered")):
        yield Flaw("#/resources", "any_of and ordered are for clouds; write one kind of node")
    said = (task.get("config") or {}).get("slurm")
    if said is not None and not isinstance(said, dict):
        yield Flaw("#/config/slurm", f"{said!r} is no mapping; write sbatch_options below it")
    elif said:
        yield from _wrong_words(said)
        yield from _wrong_options(said.get("sbatch_options"))


def _wrong_words(said: Mapping[str, Any]) -> Iterator[Flaw]:
    for word in sorted(map(str, said.keys() - set(WORDS))):
        yield Flaw(f"#/config/slurm/{word}", _unknown(word, WORDS))
    notice_s, probe, packages = said.get("notice_s"), said.get("probe"), said.get("packages")
    if notice_s is not None and not (type(notice_s) is int and 30 <= notice_s <= 3600):
        told = f"{notice_s!r} is no time to save in; write seconds from 30 to 3600"
        yield Flaw("#/config/slurm/notice_s", told)
    if probe is not None and _probe(probe) not in PROBES:
        told = f"{probe!r} is not known; write {', '.join(PROBES[:-1])} or {PROBES[-1]}"
        yield Flaw("#/config/slurm/probe", told)
    if packages is not None and not (
        isinstance(packages, list) and all(map(_is_package, packages))
    ):
        told = "is no list of Python packages; write one such as [torch, numpy]"
        yield Flaw("#/config/slurm/packages", told)


def _wrong_options(options: Any) -> Iterator[Flaw]:
    if options is not None and not isinstance(options, dict):
        yield Flaw(
            "#/config/slurm/sbatch_options",
            f"{options!r} is no mapping; write one such as account: physics",
        )
        return
    for name, value in (options or {}).items():
        place, plain = f"#/config/slurm/sbatch_options/{name}", str(name).replace("_", "-")
        if plain not in OPTIONS:
            yield Flaw(place, _unknown(plain, OPTIONS))
        elif plain == "time" and not isinstance(value, str):
            yield Flaw(place, f"YAML reads {value!r}; write the time in quotes, such as '02:00:00'")
        elif not isinstance(value, str | int | bool) or not _PLAIN.fullmatch(str(value)):
            yield Flaw(
                place, f"{value!r} is no value of an option; write a text, a number, true or false"
            )


def _unknown(word: str, known: Any) -> str:
    if near := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f"is not known; did you mean {near[0]!r}?"
    return f"is not for a job to say; known are {', '.join(sorted(known))}"


def _is_package(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None


def _probe(value: Any) -> str:
    # YAML reads off as false.
    return "off" if value is False else str(value)


def _said(task: Mapping[str, Any]) -> dict[str, Any]:
    said = dict((task.get("config") or {}).get("slurm") or {})
    if "probe" in said and said["probe"] is not None:
        said["probe"] = _probe(said["probe"])
    return said


def _options(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in (said.get("sbatch_options") or {}).items():
        yield str(name).replace("_", "-"), value


def _size(resources: Mapping[str, Any]) -> dict[str, str | bool]:
    """How large a node is to be, in sbatch's words. Which kind of GPU that is, clusters call by names of their own."""
    size: dict[str, str | bool] = {}
    first = next(iter(candidates(resources)), None)
    for _, count in accelerators(first.words.get("accelerators") if first else None):
        size["gpus-per-node"] = str(max(1, int(count)))
        break
    if found := _COUNT.fullmatch(str(resources.get("cpus") or "")):
        size["cpus-per-task"] = found[1]
    if found := _MEMORY.fullmatch(str(resources.get("memory") or "")):
        size["mem"] = f"{found[1]}G"
    return size
