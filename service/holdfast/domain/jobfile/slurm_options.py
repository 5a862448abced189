"""Slurm options of a job file: `config.slurm`, and `resources` as sbatch options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import resource_options
from holdfast.errors import ValidationIssue

SLURM_CONFIG_KEYS: Final = ("sbatch_options", "notice_s", "probe", "packages")
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
"""Sbatch options that a job may set. Holdfast sets the others, which define logs, signals and accounting."""
NOTICE_S: Final = 120
"""Seconds of notice before the time limit. A lower value cuts off large checkpoints; a higher value ends training early."""
_PLAIN: Final = re.compile(r"[ -~]{1,1000}")
_MEMORY: Final = re.compile(r"(\d+)\s*(?:gb?)?\+?", re.IGNORECASE)
_COUNT: Final = re.compile(r"(\d+)\+?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """Slurm options of a task."""

    options: Mapping[str, str | bool]
    """Sbatch options by long name; True for flags."""
    requeue: bool
    notice_s: int
    probe: str
    packages: tuple[str, ...] | None
    """Python packages required on every node; None for the worker's requirements."""
    cluster: str
    """Requested cluster; empty for any."""

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> Self:
        """Read the options of a task for which `slurm_flaws` reports no mistakes."""
        resources = task.get("resources") or {}
        config = _slurm_config(task)
        given = {
            name: str(v) if v is not True else True
            for name, v in _options(config)
            if v is not False
        }
        head, cluster, partition = (*str(resources.get("infra") or "").split("/"), "", "")[:3]
        if head.lower() != "slurm":  # A job for another engine, rendered for Slurm.
            cluster = partition = ""
        options: dict[str, str | bool] = {
            **({"partition": partition} if partition not in {"", "*"} else {}),
            **_node_size(resources),
            **given,
        }
        requeue = options.pop("requeue", None)
        packages = config.get("packages")
        return cls(
            options=options,
            requeue=requeue is not None or dict(_options(config)).get("requeue") is not False,
            notice_s=int(config.get("notice_s") or NOTICE_S),
            probe=str(config.get("probe") or PROBES[0]),
            packages=None if packages is None else tuple(packages),
            cluster="" if cluster == "*" else cluster,
        )


def slurm_flaws(task: Mapping[str, Any]) -> Iterator[ValidationIssue]:
    """Mistakes in a task that Slurm or its launcher would not accept."""
    resources = task.get("resources") or {}
    for word, pattern in (("cpus", _COUNT), ("memory", _MEMORY)):
        value = resources.get(word)
        if value is not None and not pattern.fullmatch(str(value)):
            yield ValidationIssue(
                f"#/resources/{word}", f"{value!r} is not a whole number; write one such as 16"
            )
    if str(resources.get("infra") or "").count("/") > 2:
        yield ValidationIssue(
            "#/resources/infra", "has too many parts; write slurm/cluster/partition"
        )
    if any(resources.get(word) for word in ("any_of", "ordered")):
        yield ValidationIssue(
            "#/resources", "any_of and ordered are for clouds; write a single node type"
        )
    config = (task.get("config") or {}).get("slurm")
    if config is not None and not isinstance(config, dict):
        yield ValidationIssue(
            "#/config/slurm", f"{config!r} is not a mapping; write sbatch_options below it"
        )
    elif config:
        yield from _config_flaws(config)
        yield from _option_flaws(config.get("sbatch_options"))


def _config_flaws(config: Mapping[str, Any]) -> Iterator[ValidationIssue]:
    for word in sorted(map(str, config.keys() - set(SLURM_CONFIG_KEYS))):
        yield ValidationIssue(f"#/config/slurm/{word}", _unknown_key(word, SLURM_CONFIG_KEYS))
    notice_s, probe, packages = config.get("notice_s"), config.get("probe"), config.get("packages")
    if notice_s is not None and not (type(notice_s) is int and 30 <= notice_s <= 3600):
        message = f"{notice_s!r} is not a notice time; write seconds from 30 to 3600"
        yield ValidationIssue("#/config/slurm/notice_s", message)
    if probe is not None and _probe(probe) not in PROBES:
        message = f"{probe!r} is unknown; write {', '.join(PROBES[:-1])} or {PROBES[-1]}"
        yield ValidationIssue("#/config/slurm/probe", message)
    if packages is not None and not (
        isinstance(packages, list) and all(map(_is_package, packages))
    ):
        message = "is not a list of Python packages; write one such as [torch, numpy]"
        yield ValidationIssue("#/config/slurm/packages", message)


def _option_flaws(options: Any) -> Iterator[ValidationIssue]:
    if options is not None and not isinstance(options, dict):
        yield ValidationIssue(
            "#/config/slurm/sbatch_options",
            f"{options!r} is not a mapping; write one such as account: physics",
        )
        return
    for name, value in (options or {}).items():
        place, plain = f"#/config/slurm/sbatch_options/{name}", str(name).replace("_", "-")
        if plain not in OPTIONS:
            yield ValidationIssue(place, _unknown_key(plain, OPTIONS))
        elif plain == "time" and not isinstance(value, str):
            yield ValidationIssue(
                place, f"YAML reads {value!r}; write the time in quotes, such as '02:00:00'"
            )
        elif not isinstance(value, str | int | bool) or not _PLAIN.fullmatch(str(value)):
            yield ValidationIssue(
                place, f"{value!r} is not an option value; write a text, a number, true or false"
            )


def _unknown_key(word: str, known: Any) -> str:
    if near := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f"unknown key; did you mean {near[0]!r}?"
    return f"is not allowed in a job; allowed are {', '.join(sorted(known))}"


def _is_package(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None


def _probe(value: Any) -> str:
    # YAML parses off as false.
    return "off" if value is False else str(value)


def _slurm_config(task: Mapping[str, Any]) -> dict[str, Any]:
    config = dict((task.get("config") or {}).get("slurm") or {})
    if "probe" in config and config["probe"] is not None:
        config["probe"] = _probe(config["probe"])
    return config


def _options(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in (config.get("sbatch_options") or {}).items():
        yield str(name).replace("_", "-"), value


def _node_size(resources: Mapping[str, Any]) -> dict[str, str | bool]:
    """Node size as sbatch options.

    The GPU type is omitted because clusters name GPUs differently.
    """
    size: dict[str, str | bool] = {}
    first = next(iter(resource_options(resources)), None)
    for _, count in parse_accelerators(first.options.get("accelerators") if first else None):
        size["gpus-per-node"] = str(max(1, int(count)))
        break
    if found := _COUNT.fullmatch(str(resources.get("cpus") or "")):
        size["cpus-per-task"] = found[1]
    if found := _MEMORY.fullmatch(str(resources.get("memory") or "")):
        size["mem"] = f"{found[1]}G"
    return size
