"""What can be rented where: a small dated list, which refuses what nobody sells and is silent about all else.

A launcher would find out, too: by asking for it again and again, without end and without a word to its user.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from holdfast.domain.jobfile.resource_options import ResourceOption
from holdfast.errors import Flaw

_MEMORY: Final = re.compile(r"\d+[gmt]b\+?", re.IGNORECASE)
_FULL_NAMES: Final = {"aws": "AWS", "azure": "Azure", "gcp": "GCP", "lambda": "Lambda"}


@dataclass(frozen=True, slots=True)
class AcceleratorCatalog:
    """A list of offers."""

    as_of: str
    sizes: Mapping[str, Mapping[str, Mapping[int, str]]]
    """By cloud, accelerator and count: the instance type."""
    sold: Mapping[str, frozenset[str]]
    """By accelerator: which of the listed clouds sell it."""
    aliases: Mapping[str, str]
    names: frozenset[str]
    """Every name that SkyPilot knows."""

    @classmethod
    @cache
    def of_this_version(cls) -> AcceleratorCatalog:
        """The list that this version brings along."""
        text = (resources.files("holdfast.domain") / "offers.yaml").read_text(encoding="utf-8")
        raw = yaml.safe_load(text)
        sold = {name: frozenset(clouds) for name, clouds in raw["sold"].items()}
        listed = {name for offered in raw["sizes"].values() for name in offered}
        names = frozenset([*sold, *listed, *raw["others"]])
        return cls(str(raw["as_of"]), raw["sizes"], sold, raw["aliases"], names)

    def misspelt(self, name: str) -> str | None:
        """What `name` is a misspelling of; None: nothing that is known here."""
        if name.casefold() in {known.casefold() for known in self.names}:
            return None
        by_letters = {_letters(known): known for known in (*self.names, *self.aliases)}
        known = by_letters.get(_letters(name))
        return None if known is None else self.aliases.get(known, known)

    def near(self, name: str) -> str | None:
        """A known name that looks like an unknown one; None: it is known, or looks like none."""
        by_case = {known.casefold(): known for known in self.names}
        if name.casefold() in by_case:
            return None
        found = difflib.get_close_matches(name.casefold(), by_case, n=1, cutoff=0.8)
        return by_case[found[0]] if found else None

    def refusal(self, cloud: str | None, name: str, count: float) -> str | None:
        """Why nobody sells that there, and what is sold instead; None: it is sold, or nothing is known about it."""
        name = {known.casefold(): known for known in self.names}.get(name.casefold(), name)
        if cloud not in _FULL_NAMES or name not in self.sold:
            return None
        sizes = self.sizes.get(cloud, {}).get(name)
        if cloud in self.sold[name] and (sizes is None or count in sizes):
            return None
        what = f"{name}:{count:g}"
        there = ", ".join(self._like(cloud, name))
        instead = f"but {there}" if there else "nor any other of its kind"
        others = [
            f"{_FULL_NAMES[other]} has {what} ({offered[name][int(count)]})"
            for other, offered in self.sizes.items()
            if other != cloud and count in offered.get(name, {})
        ]
        sentence = "; ".join([f"{_FULL_NAMES[cloud]} does not sell {what}, {instead}", *others])
        return f"{sentence} (as of {self.as_of}); write what is sold"

    def _like(self, cloud: str, name: str) -> Iterator[str]:
        """What that cloud sells of the same kind, the very accelerator first."""
        family = name.partition("-")[0]
        offered = self.sizes.get(cloud, {})
        for other in sorted(offered, key=lambda other: (other != name, other)):
            if other.partition("-")[0] == family:
                yield from (f"{other}:{count} ({kind})" for count, kind in offered[other].items())


def judge(found: tuple[ResourceOption, ...]) -> tuple[tuple[Flaw, ...], tuple[str, ...]]:
    """What is wrong with the accelerators of candidates, and what is odd about them, as sentences.

    One candidate that can be had is enough for a job; those that cannot are then only noted.
    """
    offers = AcceleratorCatalog.of_this_version()
    flaws, notes, refused, possible = list[Flaw](), list[str](), list[Flaw](), False
    for candidate in found:
        place = f"{candidate.pointer}/accelerators"
        if "accelerators" not in candidate.own:
            place = "#/resources/accelerators"
        asked = list(accelerators(candidate.words.get("accelerators")))
        if not asked or candidate.words.get("instance_type"):
            possible = True
        for name, count in asked:
            if known := offers.misspelt(name):
                flaws.append(Flaw(place, f"{name!r} is not known; did you mean {known!r}?"))
            elif near := offers.near(name):
                notes.append(f"{place[2:]}: {name!r} is passed on as it is; did you mean {near!r}?")
            if sentence := offers.refusal(candidate.cloud, name, count):
                refused.append(Flaw(place, sentence))
            else:
                possible = True
    if possible:
        notes += [f"{flaw.pointer[2:]}: {flaw.message.rpartition(';')[0]}" for flaw in refused]
        refused = []
    return tuple(dict.fromkeys([*flaws, *refused])), tuple(dict.fromkeys(notes))


def accelerators(word: Any) -> Iterator[tuple[str, float]]:
    """Name and count of each accelerator that would do; nothing for those that are asked for by their memory."""
    match word:
        case str():
            parts = [part.strip() for part in word.split(":")]
            if len(parts) <= 2 and not any(map(_MEMORY.fullmatch, parts)):
                count = parts[1] if len(parts) == 2 else "1"
                if re.fullmatch(r"\d+(\.\d+)?", count):
                    yield parts[0], float(count)
        case dict():
            for name, count in word.items():
                yield from accelerators(str(name) if count is None else f"{name}:{count}")
        case list():
            for item in word:
                yield from accelerators(item)
        case _:
            pass


def _letters(name: str) -> str:
    """A name without what people leave out or add: case, dashes, blanks, the B of GB."""
    bare = re.sub(r"[^a-z0-9]", "", name.casefold().removeprefix("nvidia"))
    return re.sub(r"(?<=\d\d)g$", "gb", bare)
