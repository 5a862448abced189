"""Accelerator catalog: a small dated list that refuses combinations no cloud offers.

Accelerators that are not listed are accepted. Without this check, a launcher would retry an impossible request forever without
a message to the user.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from holdfast.domain.jobfile.resource_options import ResourceOption
from holdfast.errors import ValidationIssue

_MEMORY: Final = re.compile(r"\d+[gmt]b\+?", re.IGNORECASE)
_FULL_NAMES: Final = {"aws": "AWS", "azure": "Azure", "gcp": "GCP", "lambda": "Lambda"}


@dataclass(frozen=True, slots=True)
class AcceleratorCatalog:
    """Accelerators offered by clouds, as of a date."""

    as_of: str
    sizes: Mapping[str, Mapping[str, Mapping[int, str]]]
    """Instance type by cloud, accelerator and count."""
    sold: Mapping[str, frozenset[str]]
    """Clouds in the list that offer each accelerator."""
    aliases: Mapping[str, str]
    names: frozenset[str]
    """All accelerator names known to SkyPilot."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Parse the content of `offers.yaml`."""
        sold = {name: frozenset(clouds) for name, clouds in raw["sold"].items()}
        listed = {name for offered in raw["sizes"].values() for name in offered}
        names = frozenset([*sold, *listed, *raw["others"]])
        return cls(str(raw["as_of"]), raw["sizes"], sold, raw["aliases"], names)

    def correction(self, name: str) -> str | None:
        """The accelerator that `name` misspells; None if it is known or resembles none."""
        if name.casefold() in {known.casefold() for known in self.names}:
            return None
        by_letters = {_normalized_name(known): known for known in (*self.names, *self.aliases)}
        known = by_letters.get(_normalized_name(name))
        return None if known is None else self.aliases.get(known, known)

    def similar_name(self, name: str) -> str | None:
        """A similar known name; None if the name is known or resembles none."""
        by_case = {known.casefold(): known for known in self.names}
        if name.casefold() in by_case:
            return None
        found = difflib.get_close_matches(name.casefold(), by_case, n=1, cutoff=0.8)
        return by_case[found[0]] if found else None

    def refusal(self, cloud: str | None, name: str, count: float) -> str | None:
        """Why a cloud does not offer an accelerator, with alternatives.

        None if it does or is unknown.
        """
        name = {known.casefold(): known for known in self.names}.get(name.casefold(), name)
        if cloud not in _FULL_NAMES or name not in self.sold:
            return None
        sizes = self.sizes.get(cloud, {}).get(name)
        if cloud in self.sold[name] and (sizes is None or count in sizes):
            return None
        what = f"{name}:{count:g}"
        there = ", ".join(self._alternatives(cloud, name))
        instead = f"but {there}" if there else "nor any similar one"
        others = [
            f"{_FULL_NAMES[other]} has {what} ({offered[name][int(count)]})"
            for other, offered in self.sizes.items()
            if other != cloud and count in offered.get(name, {})
        ]
        sentence = "; ".join([f"{_FULL_NAMES[cloud]} does not sell {what}, {instead}", *others])
        return f"{sentence} (as of {self.as_of}); choose one of these"

    def _alternatives(self, cloud: str, name: str) -> Iterator[str]:
        """Offers of a cloud from the same family, the accelerator itself first."""
        family = name.partition("-")[0]
        offered = self.sizes.get(cloud, {})
        for other in sorted(offered, key=lambda other: (other != name, other)):
            if other.partition("-")[0] == family:
                yield from (f"{other}:{count} ({kind})" for count, kind in offered[other].items())


def check_accelerators(
    found: tuple[ResourceOption, ...], offers: AcceleratorCatalog
) -> tuple[tuple[ValidationIssue, ...], tuple[str, ...]]:
    """Mistakes and notes on the accelerators of all resource options.

    One available option suffices for a job; unavailable ones are then only noted.
    """
    issues, notes, refused, possible = (
        list[ValidationIssue](),
        list[str](),
        list[ValidationIssue](),
        False,
    )
    for candidate in found:
        place = f"{candidate.pointer}/accelerators"
        if "accelerators" not in candidate.own_options:
            place = "#/resources/accelerators"
        asked = list(parse_accelerators(candidate.options.get("accelerators")))
        if not asked or candidate.options.get("instance_type"):
            possible = True
        for name, count in asked:
            if known := offers.correction(name):
                issues.append(
                    ValidationIssue(place, f"{name!r} is unknown; did you mean {known!r}?")
                )
            elif near := offers.similar_name(name):
                notes.append(
                    f"{place[2:]}: {name!r} is passed on unchanged; did you mean {near!r}?"
                )
            if sentence := offers.refusal(candidate.cloud, name, count):
                refused.append(ValidationIssue(place, sentence))
            else:
                possible = True
    if possible:
        notes += [f"{issue.pointer[2:]}: {issue.message.rpartition(';')[0]}" for issue in refused]
        refused = []
    return tuple(dict.fromkeys([*issues, *refused])), tuple(dict.fromkeys(notes))


def parse_accelerators(word: Any) -> Iterator[tuple[str, float]]:
    """Name and count of each accelerator; none if requested by memory."""
    match word:
        case str():
            parts = [part.strip() for part in word.split(":")]
            if len(parts) <= 2 and not any(map(_MEMORY.fullmatch, parts)):
                count = parts[1] if len(parts) == 2 else "1"
                if re.fullmatch(r"\d+(\.\d+)?", count):
                    yield parts[0], float(count)
        case dict():
            for name, count in word.items():
                yield from parse_accelerators(str(name) if count is None else f"{name}:{count}")
        case list():
            for item in word:
                yield from parse_accelerators(item)
        case _:
            pass


def _normalized_name(name: str) -> str:
    """The name without spelling variants: case, dashes, spaces, the B of GB."""
    bare = re.sub(r"[^a-z0-9]", "", name.casefold().removeprefix("nvidia"))
    return re.sub(r"(?<=\d\d)g$", "gb", bare)
