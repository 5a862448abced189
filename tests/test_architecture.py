"""Rules about modules and packages that the import contracts in `pyproject.toml` cannot state."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast.domain.jobfile.spec import Engine
from holdfast.server.launchers import LAUNCHERS

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "service" / "holdfast", ROOT / "worker" / "holdfast_worker")
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))

LEAST_LINES = 60
"""Modules with fewer lines need a reason.

A lower value scatters a subject; a higher value excludes small contracts.
"""
MOST_MODULES = 25
"""Maximum number of modules in one package.

A higher value makes modules hard to find; a lower value creates packages without a subject.
"""
THIN = {  # Module with fewer than `LEAST_LINES` lines: its reason.
    "holdfast/__main__.py": "entry point",
    "holdfast/adapters/local/supervisor.py": "alias for launches of the previous version",
    "holdfast/addresses.py": "a format: URLs of the service",
    "holdfast/api/__main__.py": "entry point",
    "holdfast/api/dependencies.py": "parameters of routes",
    "holdfast/api/middleware/timing.py": "one middleware",
    "holdfast/api/schemas/base.py": "contract: the base of all schemas",
    "holdfast/api/schemas/metrics.py": "contract: the schemas of one resource",
    "holdfast/background/billing_rollup.py": "one periodic task",
    "holdfast/background/code_retention.py": "one periodic task",
    "holdfast/background/launch_expiry.py": "one periodic task",
    "holdfast/cli/code_upload.py": "one option and its progress bar",
    "holdfast/cli/wheelhouse.py": "one command, independent of service and jobs",
    "holdfast/client/credentials.py": "a format: the file of a login",
    "holdfast/client/event_stream.py": "a format: server-sent events",
    "holdfast/client/sweeps.py": "contract: the routes of one resource",
    "holdfast/store/tables/sweeps.py": "contract: the table of one subject",
    "holdfast/demo/history/users.py": "data of the demonstration",
    "holdfast/doctor/findings.py": "value types",
    "holdfast/domain/diagnostics/rank_presence.py": "one diagnosis",
    "holdfast/domain/events/base.py": "contract: the base of all events",
    "holdfast/domain/jobs/launch_admission.py": "value types",
    "holdfast/domain/jobs/transitions.py": "the table of states",
    "holdfast/gc_tuning.py": "a setting of the interpreter",
    "holdfast/host/untrusted_files.py": "a security boundary, reviewed by itself",
    "holdfast/launchers/skypilot/naming.py": "a format: names at SkyPilot",
    "holdfast/launchers/skypilot/version.py": "contract: the versions of SkyPilot that work",
    "holdfast/skypilot_server/admission_plugin.py": "installs one file",
    "holdfast/store/identity/service_tokens.py": "a security boundary: secrets derived from one",
    "holdfast/store/ids.py": "a format: ids of jobs",
    "holdfast/store/tables/base.py": "contract: the base of all tables",
    "holdfast/store/tables/market.py": "contract: the tables of one subject",
    "holdfast/store/tables/metrics.py": "contract: the tables of one subject",
    "holdfast_worker/agent.py": "alias for launches of the previous version",
    "holdfast/clock.py": "clock",
    "holdfast_worker/clock.py": "clock",
    "holdfast_worker/console.py": "the only access to standard output",
    "holdfast_worker/distributed/flight_recorder.py": "a setting of torch",
    "holdfast_worker/entry.py": "alias for launches of the previous version",
    "holdfast_worker/node/hosted_reserve.py": "entry point",
    "holdfast_worker/optional_imports.py": "the only access to optional packages",
    "holdfast_worker/parent_process.py": "calls of the operating system",
    "holdfast_worker/storage/transfers.py": "the two requests that all object stores share",
}
SAME_NAME = {"HoldfastCallback": "Hugging Face and Lightning each call such a class a callback"}
"""Public class names that occur twice, with the reason."""
WITHOUT_TORCH = ("node", "preemption", "protocol", "storage", "topology", "watchdog")
"""Worker packages that import without torch: they start or watch ranks that may hang."""
WITH_TORCH = {"holdfast_worker.node.torchrun_agent"}
"""The torchrun process, which needs torch."""


def name_of(path: Path) -> str:
    """The name of a module in `THIN`: its path below `service` or `worker`."""
    return path.relative_to(ROOT).as_posix().partition("/")[2]


def is_thin(path: Path) -> bool:
    return path.name != "__init__.py" and path.read_text().count("\n") < LEAST_LINES


def public_classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_thin_module_has_a_reason() -> None:
    thin = {name_of(path) for path in MODULES if is_thin(path)}

    # Merge other thin modules with a module of the same subject.
    assert sorted(thin - THIN.keys()) == []
    assert sorted(THIN.keys() - set(map(name_of, MODULES))) == []


def test_package_has_a_bounded_number_of_modules() -> None:
    counts = Counter(path.parent for path in MODULES if path.name != "__init__.py")

    assert {str(package): n for package, n in counts.items() if n > MOST_MODULES} == {}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_two_public_classes_have_the_same_name(package: Path) -> None:
    places = defaultdict(list)
    for path in package.rglob("*.py"):
        for name in public_classes(path):
            places[name].append(name_of(path))

    assert {n: found for n, found in places.items() if len(found) > 1 and n not in SAME_NAME} == {}


def test_no_two_schemas_have_the_same_name() -> None:
    description = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    schemas = description["components"]["schemas"]

    # FastAPI distinguishes models of equal names by their Python paths, which are not part of the API.
    assert [name for name in schemas if not name.isidentifier() or "__" in name] == []


def test_each_kind_of_launcher_has_an_entry() -> None:
    assert LAUNCHERS.keys() == set(Engine)


def test_modules_outliving_a_rank_import_without_torch() -> None:
    worker = PACKAGES[1]
    paths = [path for name in WITHOUT_TORCH for path in (worker / name).glob("*.py")]
    names = {".".join(path.relative_to(worker.parent).with_suffix("").parts) for path in paths}
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n    assert 'torch' not in sys.modules, name"

    done = subprocess.run(
        [sys.executable, "-c", code, *sorted(names - WITH_TORCH)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert names >= WITH_TORCH
    assert done.returncode == 0, done.stderr


def test_package_graph_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "package_graph.py", "--check"], check=False
    )

    assert done.returncode == 0, "run: python docs/package_graph.py"
