"""Slurm options of a job file: `config.slurm`, and `resources` as sbatch options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast.domain.jobfile.accelerator_catalog import parse_accelerators
from holdfast.domain.jobfile.resource_options import LISTS, ResourceOption, resource_options
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
    qos: str
    """QOS that `resources` name; empty if they name none."""
    is_spot: bool | None
    """Whether the partition is preemptible, as an entry of a list says; None if unknown."""

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> Self:
        """Read the options of a task for which `slurm_flaws` reports no mistakes."""
        places = _alike(resource_options(task.get("resources") or {}))
        first = places[0]
        config = _slurm_config(task)
        given = {
            name: str(v) if v is not True else True
            for name, v in _options(config)
            if v is not False
        }
        # Slurm starts the job in the first of several partitions that has nodes for it.
        partitions = dict.fromkeys(place.partition for place in places if place.partition)
        options: dict[str, str | bool] = {
            **({"partition": ",".join(partitions)} if partitions else {}),
            **({"qos": first.qos} if first.qos else {}),
            **first.size,
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
            cluster=first.cluster,
            qos=first.qos,
            is_spot=first.is_spot if len({place.is_spot for place in places}) == 1 else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlurmPlace:
    """Where an option runs, and the size of its nodes."""

    cluster: str
    partition: str
    qos: str
    size: Mapping[str, str | bool]
    is_spot: bool | None

    @classmethod
    def from_option(cls, option: ResourceOption, *, is_entry: bool) -> Self:
        head, *parts = [part.strip() for part in str(option.options.get("infra") or "").split("/")]
        if head.lower() != "slurm":  # A job for another engine, rendered for Slurm.
            parts = []
        cluster, partition, qos = ["" if part == "*" else part for part in (*parts, "", "", "")][:3]
        return cls(
            cluster=cluster,
            partition=partition,
            qos=qos,
            size=_node_size(option.options),
            # Directly under resources of a task, use_spot may be a default.
            is_spot=option.own_options.get("use_spot") if is_entry else None,
        )

    def is_like(self, other: Self) -> bool:
        """Whether one Slurm job can ask for both."""
        mine, others = ((each.cluster, each.qos, each.size) for each in (self, other))
        return mine == others and bool(self.partition) == bool(other.partition)


def _alike(options: Sequence[ResourceOption]) -> list[_SlurmPlace]:
    """The first place, and the others that differ from it in their partition only."""
    is_entry = options[0].pointer != "#/resources"
    found = [_SlurmPlace.from_option(option, is_entry=is_entry) for option in options]
    return [place for place in found if place.is_like(found[0])]


def unlike_places(resources: Mapping[str, Any]) -> Iterator[str]:
    """Names of the entries that one Slurm job cannot ask for together with the first."""
    options = resource_options(resources)
    first, *others = [_SlurmPlace.from_option(option, is_entry=True) for option in options]
    for place, option in zip(others, options[1:], strict=True):
        if not place.is_like(first):
            yield option.pointer.removeprefix("#/").replace("/", ".")


def slurm_flaws(task: Mapping[str, Any]) -> Iterator[ValidationIssue]:
    """Mistakes in a task that Slurm or its launcher would not accept."""
    resources = task.get("resources") or {}
    yield from _place_flaws(resources)
    config = (task.get("config") or {}).get("slurm")
    if config is not None and not isinstance(config, dict):
        yield ValidationIssue(
            "#/config/slurm", f"{config!r} is not a mapping; write sbatch_options below it"
        )
    elif config:
        yield from _config_flaws(config)
        yield from _option_flaws(config.get("sbatch_options"))
        yield from _override_flaws(resources, config)


def _place_flaws(resources: Mapping[str, Any]) -> Iterator[ValidationIssue]:
    if all(resources.get(word) for word in LISTS):
        yield ValidationIssue(
            "#/resources/ordered", "cannot be combined with any_of; write one of the two"
        )
        return
    is_list = any(resources.get(word) for word in LISTS)
    for option in resource_options(resources):
        for word, pattern in (("cpus", _COUNT), ("memory", _MEMORY)):
            value = option.options.get(word)
            if value is not None and not pattern.fullmatch(str(value)):
                place = option.pointer if word in option.own_options else "#/resources"
                yield ValidationIssue(
                    f"{place}/{word}", f"{value!r} is not a whole number; write one such as 16"
                )
        infra = str(option.options.get("infra") or "")
        if is_list and option.cloud != "slurm":
            yield ValidationIssue(
                f"{option.pointer}/infra",
                f"is {infra or 'missing'}, and the job runs on Slurm; write slurm/cluster/partition, or remove this entry",
            )
        elif infra.count("/") > 3:
            yield ValidationIssue(
                f"{option.pointer}/infra",
                "has too many parts; write slurm/cluster/partition, or slurm/cluster/partition/qos",
            )


def _override_flaws(
    resources: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[ValidationIssue]:
    """Sbatch options that would replace what the places of a job name."""
    options = config.get("sbatch_options")
    if not isinstance(options, dict):
        return
    places = [
        _SlurmPlace.from_option(option, is_entry=False) for option in resource_options(resources)
    ]
    for word, is_named in (
        # In a file with one partition, the option replaces it as ever.
        ("partition", len(places) > 1 and any(place.partition for place in places)),
        ("qos", any(place.qos for place in places)),
    ):
        if is_named and word in options:
            yield ValidationIssue(
                f"#/config/slurm/sbatch_options/{word}",
                f"would replace the {word} of each place under resources; remove it, or remove that of the places",
            )


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
    for _, count in parse_accelerators(resources.get("accelerators")):
        size["gpus-per-node"] = str(max(1, int(count)))
        break
    if found := _COUNT.fullmatch(str(resources.get("cpus") or "")):
        size["cpus-per-task"] = found[1]
    if found := _MEMORY.fullmatch(str(resources.get("memory") or "")):
        size["mem"] = f"{found[1]}G"
    return size
