"""requirements.lock is what `make setup` installs: whole, exact, and no more than is needed."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from holdfast_worker.protocol.release import DISTRIBUTION
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.tables import for_each

ROOT = Path(__file__).parents[2]
LOCK = {
    canonicalize_name(name): version
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if not line.startswith("#")
    for name, version in [line.split("==")]
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# On a machine with the CUDA build of torch, these come with it, at the versions that torch itself pins.
BROUGHT_BY_TORCH = re.compile(r"nvidia-|cuda-|triton$")


def reachable(*extras: str) -> set[str]:
    """Every package that `holdfast-train[extras]` needs on this machine, by what pyproject.toml says now."""
    asked = [
        *PROJECT["dependencies"],
        *(t for e in extras for t in PROJECT["optional-dependencies"][e]),
    ]
    seen: set[tuple[str, frozenset[str]]] = set()
    ahead = [Requirement(text) for text in asked]
    while ahead:
        need = ahead.pop()
        here = (canonicalize_name(need.name), frozenset(need.extras))
        if here in seen or BROUGHT_BY_TORCH.match(need.name):
            continue
        seen.add(here)
        if here[0] == DISTRIBUTION:
            texts = [t for e in need.extras for t in PROJECT["optional-dependencies"][e]]
        else:
            texts = distribution(here[0]).requires or []
        ahead += [item for item in map(Requirement, texts) if _applies(item, need.extras)]
    return {package for package, _ in seen} - {DISTRIBUTION}


def _applies(need: Requirement, extras: Iterable[str]) -> bool:
    marker = need.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def test_lock_file_pins_exactly_the_development_dependencies() -> None:
    assert set(LOCK) == reachable("dev")


def test_every_pin_is_exact_and_the_same_everywhere() -> None:
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in LOCK.values())


@for_each(itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()))
def test_every_requirement_of_the_project_is_met(text: str) -> None:
    need = Requirement(text)

    if need.name != DISTRIBUTION:
        assert need.specifier.contains(LOCK[canonicalize_name(need.name)])


def test_this_environment_is_the_locked_one() -> None:
    """Otherwise green tests say nothing about what a stranger gets; `make setup` puts it right."""
    here = {name: distribution(name).version.partition("+")[0] for name in LOCK}

    assert here == LOCK


def test_client_and_service_exclude_heavy_dependencies() -> None:
    client = reachable()
    service = reachable("service", "postgres")

    assert not client & {"sqlalchemy", "fastapi", "uvicorn", "torch", "numpy", "boto3", "psutil"}
    assert not service & {"torch", "numpy", "obstore", "safetensors"}
