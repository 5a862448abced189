"""Variables of a program as its file writes them: `envs`, and `secrets`, whose values are shown nowhere.

Values are taken as they are written (`no` stays `no`, `1e3` stays `1e3`): YAML's guesses about types are for numbers
and switches, not for what a program reads from its environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml
from holdfast_worker.protocol.environment import Env, SkyEnv

from holdfast.errors import Flaw

NULL: Final = "tag:yaml.org,2002:null"
OWN: Final = frozenset(
    {
        Env.SEED,
        Env.DETERMINISTIC,
        Env.MAX_STEPS,
        Env.WITNESS,
        Env.SYNC_SAVES,
        Env.INIT_METHOD,
        Env.BACKEND,
        SkyEnv.NUM_GPUS_PER_NODE,
    }
)
"""What a job file may say, though it has a name like those that a launcher sets."""
RESERVED: Final = (frozenset(Env) | frozenset(SkyEnv)) - OWN


@dataclass(frozen=True, slots=True)
class Section:
    """One of the two places where variables are written."""

    word: str
    option: str
    """How the command line fills it in."""


ENVS: Final = Section("envs", "--env {name}=...")
SECRETS: Final = Section("secrets", "--secret {name}, which takes it from your environment")


def variables(
    section: Section, node: yaml.Node | None, overrides: Mapping[str, str]
) -> tuple[dict[str, str], tuple[Flaw, ...]]:
    """Values as they are written, those of `overrides` over them, and what is wrong with any, by name alone."""
    place = f"#/{section.word}"
    if node is not None and node.tag != NULL and not isinstance(node, yaml.MappingNode):
        return {}, (Flaw(place, f"write {section.word} as a mapping of names to values"),)
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    written: dict[str, yaml.Node] = {name.value: value for name, value in pairs}
    given = {n: v.value for n, v in written.items() if v.tag != NULL} | dict(overrides)
    flaws: list[Flaw] = []
    for name, value in written.items():
        if value.tag == NULL and name not in overrides:
            option = section.option.format(name=name)
            flaws.append(
                Flaw(f"{place}/{name}", f"has no value; write one, or submit with {option}")
            )
        elif not isinstance(value, yaml.ScalarNode):
            flaws.append(Flaw(f"{place}/{name}", "must be one text; put it in quotes"))
            given.pop(name)
    flaws += [Flaw(f"{place}/{name}", why) for name in given if (why := wrong_name(name))]
    return given, tuple(flaws)


def wrong_name(name: str) -> str:
    """What is wrong with the name of a variable, as the end of a sentence; empty where a job may have it."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return "is not a name that a shell can use; take letters, digits and _"
    return "is set by the launcher; take another name" if name in RESERVED else ""


def duplicate_names(envs: Mapping[str, str], secrets: Mapping[str, str]) -> tuple[Flaw, ...]:
    """Names that are in both places: one of the two values would be lost."""
    sentence = "is among envs, too; write it in one of the two places"
    return tuple(Flaw(f"#/secrets/{name}", sentence) for name in secrets if name in envs)
