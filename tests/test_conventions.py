"""Conventions that linters do not check.

A failure names the place, the rule, and the remedy.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICE, WORKER, TESTS = "service/holdfast/", "worker/holdfast_worker/", "tests/"
FILES = sorted(p for top in ("service", "worker", "tests") for p in (ROOT / top).rglob("*.py"))

LONGEST_FUNCTION, LONGEST_MODULE, LONGEST_SUMMARY = 60, 500, 90
LONGEST_TEST_NAME = 60

BANNED_TEXT = {  # Pattern: the files where it is allowed, and the remedy elsewhere.
    r"\bdatetime\.(?:now|today)\(|\butcnow\b": (
        (f"{SERVICE}clock.py", f"{WORKER}clock.py"),
        "use a Clock (service) or clock.now() (worker)",
    ),
    r"\btime\.time(?:_ns)?\(": ((), "use a Clock for times, and time.monotonic() for durations"),
    r"\bexcept(?:\b[^:]*\b(?:Base)?Exception\b[^:]*)?:": (
        (),
        "catch the narrowest type, and only where the error can be handled",
    ),
    r"\brandom\.(?:random|uniform|rand\w+|choices?|shuffle|sample|gauss|expovariate)\(": (
        (SERVICE, TESTS),
        "the training draws from the global generators in all threads of a rank: use a separate generator",
    ),
    r"\b(?:FIXME|TODO|XXX)\b": ((), "resolve or remove it"),
}
WITHOUT_TORCH = (  # Packages and modules that the service imports, or that work while a rank hangs.
    *(f"{WORKER}{name}/" for name in ("protocol", "topology", "storage", "preemption", "watchdog")),
    *(
        f"{WORKER}{name}.py"
        for name in ("__init__", "__main__", "telemetry/spool", "telemetry/delivery")
    ),
)
IMPORTERS = {  # Package: the files that may import it, and the remedy elsewhere.
    "sky": (
        (
            f"{SERVICE}skypilot_server/holdfast_gate.py",
        ),  # Runs inside SkyPilot, and is copied there.
        "use SkyPilot's HTTP API, in launchers/skypilot; it has a separate environment",
    ),
    "torch": (
        tuple(
            p.relative_to(ROOT).as_posix()
            for p in (ROOT / WORKER).rglob("*.py")
            if not p.relative_to(ROOT).as_posix().startswith(WITHOUT_TORCH)
        ),
        "the service and processes that outlive a rank run without torch",
    ),
    "boto3": (
        (
            f"{WORKER}storage/s3.py",
            f"{SERVICE}storage/s3_session.py",
            f"{SERVICE}pricing/aws.py",
        ),
        "use the worker's stores, the service's checkpoint stores, or its EC2 price list",
    ),
    "botocore": (
        (
            f"{WORKER}storage/s3.py",
            f"{SERVICE}storage/s3_session.py",
            f"{SERVICE}pricing/aws.py",
        ),
        "use the worker's stores, the service's checkpoint stores, or its EC2 price list",
    ),
    "obstore": (
        (
            f"{WORKER}storage/",
            f"{SERVICE}storage/cloud.py",
        ),
        "use the worker's stores, or the service's checkpoint stores",
    ),
    "apprise": (
        (f"{SERVICE}notifications/chat.py",),
        "it connects to any URL; list its permitted services in notifications",
    ),
    "subprocess": (
        (
            f"{SERVICE}launchers/local/",
            f"{SERVICE}launchers/slurm/transport.py",
            f"{SERVICE}doctor/machine.py",
            f"{SERVICE}packaging/offline_bundle.py",
            f"{SERVICE}demo",
            f"{SERVICE}reproduce/",
            f"{SERVICE}skypilot_server/",
            f"{WORKER}node/fork_server.py",
            f"{WORKER}node/agent_process.py",
            f"{WORKER}node/hosted_nodes.py",
            f"{WORKER}node/node_commands.py",
            f"{WORKER}node/node_shells.py",
            f"{WORKER}node/node_run.py",
            f"{WORKER}node/open_trackers.py",
            f"{WORKER}telemetry/manifest.py",
            f"{WORKER}watchdog/stack_dump.py",
        ),
        "only launchers, the demo, the SkyPilot server, the doctor, holdfast-worker run and git start programs",
    ),
}
ENVIRON = (  # Modules that read settings or pass the environment to programs.
    f"{SERVICE}settings.py",
    f"{SERVICE}launchers/local/environment.py",
    f"{SERVICE}demo/services.py",
    f"{SERVICE}skypilot_server/environment.py",
    f"{WORKER}config.py",
)
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "misc"}


def problems() -> Iterator[str]:
    """Yield every violation as `place: rule; remedy`."""
    for path in FILES:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if name == f"{TESTS}test_conventions.py":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, (allowed, remedy) in BANNED_TEXT.items():
                if (found := re.search(pattern, line)) and not name.startswith(allowed):
                    yield f"{name}:{number}: {found[0]!r}; {remedy}"
        if text.count("\n") > LONGEST_MODULE:
            yield f"{name}: more than {LONGEST_MODULE} lines; split it into two subjects"
        if path.stem in VAGUE_NAMES:
            yield f"{name}: name it after its subject"
        for where, problem in _tree_problems(name, ast.parse(text)):
            yield f"{name}:{where}: {problem}"


def _tree_problems(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    is_product = not name.startswith(TESTS)
    if is_product and not ast.get_docstring(tree):
        yield 1, "no docstring; describe the purpose of the module"
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    yield node.lineno, f"{node.name} has {lines} lines; at most {LONGEST_FUNCTION}"
                if node.name.startswith("test_") and len(node.name) > LONGEST_TEST_NAME:
                    yield node.lineno, f"{node.name} has more than {LONGEST_TEST_NAME} characters"
            case ast.Import() | ast.ImportFrom() if is_product:
                yield from _imports(name, node)
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv") if is_product:
                if name not in ENVIRON:
                    yield node.lineno, "read the environment in settings.py or config.py"
    if is_product:
        yield from _undocumented(tree.body)
        yield from _long_summaries(tree)


def _long_summaries(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            if len(summary) > LONGEST_SUMMARY:
                flaw = f"the docstring's first line has {len(summary)} characters"
                yield node.body[0].lineno, f"{flaw}; at most {LONGEST_SUMMARY}, then a paragraph"


def _imports(name: str, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    modules = (
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
    )
    for module in filter(None, modules):
        allowed, remedy = IMPORTERS.get(module.partition(".")[0], ((name,), ""))
        if not name.startswith(allowed):
            yield node.lineno, f"imports {module}; {remedy}"


def _undocumented(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        overload = any("overload" in ast.dump(item) for item in node.decorator_list)
        if not ast.get_docstring(node) and not overload:
            yield node.lineno, f"{node.name} has no docstring; describe its result"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body)


def test_sources_follow_the_conventions() -> None:
    found = list(problems())

    assert not found, "\n" + "\n".join(found)


def test_import_contracts_are_complete() -> None:
    """`lint-imports` checks the contracts; this test checks that none was removed."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = {
        (contract["type"], *contract.get("source_modules", ())) for contract in linter["contracts"]
    }

    assert set(linter["root_packages"]) == {"holdfast", "holdfast_worker"}
    assert contracts >= {
        ("layers",),
        ("acyclic_siblings",),
        ("independence",),
        ("forbidden", "holdfast"),
        ("forbidden", "holdfast.api", "holdfast.submission", "holdfast.services"),
        (
            "forbidden",
            "holdfast.cli",
            "holdfast.client",
            "holdfast.prove",
            "holdfast.reproduce",
            "holdfast.sdk",
            "holdfast.mcp_server",
        ),
        ("forbidden", "holdfast.client"),
        ("forbidden", "holdfast.domain"),
        (
            "forbidden",
            "holdfast.launchers",
            "holdfast.storage",
            "holdfast.pricing",
            "holdfast.notifications",
        ),
        ("forbidden", "holdfast.submission", "holdfast.services"),
        ("forbidden", "holdfast_worker"),
        ("forbidden", "holdfast_worker.protocol"),
    }
    layered = {
        contract["containers"][0] for contract in linter["contracts"] if contract.get("exhaustive")
    }
    assert layered == {"holdfast", "holdfast.api"}


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("except Exception:", True),
        ("except (Exception, OSError):", True),
        ("except:", True),
        ("except BaseException as error:", True),
        ("except (OSError, Exception):", True),
        ("except OSError:", False),
        ("except (ValueError, IllegalException):", False),
        ("at = datetime.now(UTC)", True),
        ("at = clock.now()", False),
        ("started = time.time()", True),
        ("started_s = time.monotonic()", False),
        ("wait_s = random.uniform(0.5, 1.0)", True),
        ("wait_s = JITTER.uniform(0.5, 1.0)", False),
    ],
)
def test_banned_text_is_found(line: str, broken: bool) -> None:
    assert any(re.search(pattern, line) for pattern in BANNED_TEXT) is broken


@pytest.mark.parametrize(("length", "is_long"), [(90, False), (91, True)])
def test_long_first_line_of_a_docstring_is_found(length: int, is_long: bool) -> None:
    tree = ast.parse(f'def f():\n    """{"x" * length}\n\n    {"y" * 100}\n    """\n')

    assert bool(list(_long_summaries(tree))) is is_long
