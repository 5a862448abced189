"""requirements.lock pins exactly the development dependencies that `make setup` installs."""

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
# The CUDA build of torch installs these at the versions that torch pins.
BROUGHT_BY_TORCH = re.compile(r"nvidia-(?!ml-)|cuda-|triton$")


def reachable(*extras: str) -> set[str]:
    """All packages that `holdfast-train[extras]` requires here according to pyproject.toml."""
    requested = [
        *PROJECT["dependencies"],
        *(t for e in extras for t in PROJECT["optional-dependencies"][e]),
    ]
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(text) for text in requested]
    while pending:
        need = pending.pop()
        key = (canonicalize_name(need.name), frozenset(need.extras))
        if key in seen or BROUGHT_BY_TORCH.match(need.name):
            continue
        seen.add(key)
        if key[0] == DISTRIBUTION:
            texts = [t for e in need.extras for t in PROJECT["optional-dependencies"][e]]
        else:
            texts = distribution(key[0]).requires or []
        pending += [item for item in map(Requirement, texts) if _applies(item, need.extras)]
    return {package for package, _ in seen} - {DISTRIBUTION}


def _applies(need: Requirement, extras: Iterable[str]) -> bool:
    marker = need.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def test_lock_file_pins_exactly_the_development_dependencies() -> None:
    assert set(LOCK) == reachable("dev")


def test_every_pin_is_exact() -> None:
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in LOCK.values())


@for_each(itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()))
def test_every_requirement_of_the_project_is_met(text: str) -> None:
    need = Requirement(text)

    if need.name != DISTRIBUTION:
        assert need.specifier.contains(LOCK[canonicalize_name(need.name)])


def test_environment_matches_the_lock_file() -> None:
    """Otherwise tests of this environment would not hold for users; `make setup` restores it."""
    key = {name: distribution(name).version.partition("+")[0] for name in LOCK}

    assert key == LOCK


def test_client_and_service_exclude_heavy_dependencies() -> None:
    client = reachable()
    service = reachable("service", "postgres")

    assert not client & {"sqlalchemy", "fastapi", "uvicorn", "torch", "numpy", "boto3", "psutil"}
    assert not service & {"torch", "safetensors"}
