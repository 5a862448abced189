"""Environment variables of a job file: `envs`, and `secrets`, which are never displayed.

Values are kept as written (`no` stays `no`, `1e3` stays `1e3`): YAML types apply to numbers and switches only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml
from holdfast_worker.protocol.environment import Env, SkyEnv

from holdfast.errors import ValidationIssue

NULL: Final = "tag:yaml.org,2002:null"
OWN: Final = frozenset(
    {
        Env.SEED,
        Env.DETERMINISTIC,
        Env.MAX_STEPS,
        Env.WITNESS,
        Env.SYNC_SAVES,
        Env.WARM,
        Env.MAX_RESTARTS,
        Env.INIT_METHOD,
        Env.BACKEND,
        SkyEnv.NUM_GPUS_PER_NODE,
    }
)
"""Variables that a job file may set although their names resemble those set by launchers."""
RESERVED: Final = (frozenset(Env) | frozenset(SkyEnv)) - OWN


@dataclass(frozen=True, slots=True)
class VariableSection:
    """A section of the job file that contains variables."""

    key: str
    option: str
    """Command-line option that sets a variable."""


ENVS: Final = VariableSection("envs", "--env {name}=...")
SECRETS: Final = VariableSection("secrets", "--secret {name}, which takes it from your environment")


def parse_variables(
    section: VariableSection, node: yaml.Node | None, overrides: Mapping[str, str]
) -> tuple[dict[str, str], tuple[ValidationIssue, ...]]:
    """Values as written, merged with `overrides`, and mistakes by name."""
    place = f"#/{section.key}"
    if node is not None and node.tag != NULL and not isinstance(node, yaml.MappingNode):
        return {}, (ValidationIssue(place, f"write {section.key} as a mapping of names to values"),)
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    written: dict[str, yaml.Node] = {name.value: value for name, value in pairs}
    given = {n: v.value for n, v in written.items() if v.tag != NULL} | dict(overrides)
    issues: list[ValidationIssue] = []
    for name, value in written.items():
        if value.tag == NULL and name not in overrides:
            option = section.option.format(name=name)
            issues.append(
                ValidationIssue(
                    f"{place}/{name}", f"has no value; write one, or submit with {option}"
                )
            )
        elif not isinstance(value, yaml.ScalarNode):
            issues.append(
                ValidationIssue(f"{place}/{name}", "must be a single text; put it in quotes")
            )
            given.pop(name)
    issues += [
        ValidationIssue(f"{place}/{name}", why) for name in given if (why := name_error(name))
    ]
    return given, tuple(issues)


def name_error(name: str) -> str:
    """Why a variable name is invalid, as a predicate; empty if it is valid."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return "is not a valid shell variable name; use letters, digits and _"
    return "is set by the launcher; use another name" if name in RESERVED else ""


def duplicate_names(
    envs: Mapping[str, str], secrets: Mapping[str, str]
) -> tuple[ValidationIssue, ...]:
    """Names that appear in both sections; one of the two values would be lost."""
    sentence = "is also in envs; keep it in one of the two sections"
    return tuple(ValidationIssue(f"#/secrets/{name}", sentence) for name in secrets if name in envs)
