"""House rules that linters do not know. A failure names the place, the rule, and what to write instead."""

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

BANNED_TEXT = {  # What, where it is the door, what to write elsewhere.
    r"\bdatetime\.(?:now|today)\(|\butcnow\b": (
        (f"{SERVICE}clock.py", f"{WORKER}clock.py"),
        "take a Clock (service) or clock.now() (worker)",
    ),
    r"\btime\.time(?:_ns)?\(": ((), "moments come from a Clock, spans from time.monotonic()"),
    r"\bexcept(?:\b[^:]*\b(?:Base)?Exception\b[^:]*)?:": (
        (),
        "catch the narrowest type, where something can be done about it",
    ),
    r"\brandom\.(?:random|uniform|rand\w+|choices?|shuffle|sample|gauss|expovariate)\(": (
        (SERVICE, TESTS),
        "in a rank the training draws from the global generators, in whatever thread: have one of your own",
    ),
    r"\b(?:FIXME|TODO|XXX)\b": ((), "do it now, or leave it out"),
}
WITHOUT_TORCH = (  # Packages and modules of the worker that the service knows, or that have to work while a rank hangs.
    *(f"{WORKER}{name}/" for name in ("protocol", "topology", "storage", "preemption", "watchdog")),
    *(
        f"{WORKER}{name}.py"
        for name in ("__init__", "__main__", "telemetry/spool", "telemetry/delivery")
    ),
)
DOORS = {  # Module, who may import it, what others do.
    "sky": (
        (f"{SERVICE}skypilot_server/holdfast_gate.py",),  # Runs there, and is copied there.
        "SkyPilot is spoken to over HTTP, in launchers/skypilot; it has an environment of its own",
    ),
    "torch": (
        tuple(
            p.relative_to(ROOT).as_posix()
            for p in (ROOT / WORKER).rglob("*.py")
            if not p.relative_to(ROOT).as_posix().startswith(WITHOUT_TORCH)
        ),
        "the service and what outlives a rank must run without torch",
    ),
    "boto3": (
        (
            f"{WORKER}storage/s3.py",
            f"{SERVICE}storage/s3_session.py",
            f"{SERVICE}pricing/aws.py",
        ),
        "use the stores of the worker; in the service, its checkpoint stores, and its price list of EC2",
    ),
    "botocore": (
        (
            f"{WORKER}storage/s3.py",
            f"{SERVICE}storage/s3_session.py",
            f"{SERVICE}pricing/aws.py",
        ),
        "use the stores of the worker; in the service, its checkpoint stores, and its price list of EC2",
    ),
    "apprise": (
        (f"{SERVICE}notifications/chat.py",),
        "it connects to whatever a URL says; say which of its services are taken in notifications",
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
            f"{WORKER}node/launch.py",
            f"{WORKER}telemetry/manifest.py",
            f"{WORKER}watchdog/stack_dump.py",
        ),
        "programs are started by a launcher, the demo, SkyPilot's keeper, the doctor, holdfast-worker run, or to ask git",
    ),
}
ENVIRON = (  # Where settings are read, and where the environment is handed on to programs.
    f"{SERVICE}settings.py",
    f"{SERVICE}launchers/local/environment.py",
    f"{SERVICE}demo/services.py",
    f"{SERVICE}skypilot_server/environment.py",
    f"{WORKER}config.py",
)
NAMELESS = {"util", "utils", "helper", "helpers", "common", "manager", "misc"}


def problems() -> Iterator[str]:
    """Every broken rule, as `place: rule; what to do`."""
    for path in FILES:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if name == f"{TESTS}test_conventions.py":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, (doors, way_out) in BANNED_TEXT.items():
                if (found := re.search(pattern, line)) and not name.startswith(doors):
                    yield f"{name}:{number}: {found[0]!r}; {way_out}"
        if text.count("\n") > LONGEST_MODULE:
            yield f"{name}: more than {LONGEST_MODULE} lines; find the two nouns in it"
        if path.stem in NAMELESS:
            yield f"{name}: name the noun that it holds"
        for where, problem in _of_tree(name, ast.parse(text)):
            yield f"{name}:{where}: {problem}"


def _of_tree(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    ours = not name.startswith(TESTS)
    if ours and not ast.get_docstring(tree):
        yield 1, "no docstring; say what the module is for"
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    yield node.lineno, f"{node.name} has {lines} lines; at most {LONGEST_FUNCTION}"
                if node.name.startswith("test_") and len(node.name) > LONGEST_TEST_NAME:
                    yield node.lineno, f"{node.name} has more than {LONGEST_TEST_NAME} characters"
            case ast.Import() | ast.ImportFrom() if ours:
                yield from _doors(name, node)
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv") if ours:
                if name not in ENVIRON:
                    yield node.lineno, "read the environment in settings.py or config.py"
    if ours:
        yield from _undocumented(tree.body)
        yield from _long_summaries(tree)


def _long_summaries(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            if len(summary) > LONGEST_SUMMARY:
                flaw = f"the docstring's first line has {len(summary)} characters"
                yield node.body[0].lineno, f"{flaw}; at most {LONGEST_SUMMARY}, then a paragraph"


def _doors(name: str, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    modules = (
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
    )
    for module in filter(None, modules):
        doors, way_out = DOORS.get(module.partition(".")[0], ((name,), ""))
        if not name.startswith(doors):
            yield node.lineno, f"imports {module}; {way_out}"


def _undocumented(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        overload = any("overload" in ast.dump(item) for item in node.decorator_list)
        if not ast.get_docstring(node) and not overload:
            yield node.lineno, f"{node.name} has no docstring; say what one gets"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body)


def test_the_house_is_tidy() -> None:
    found = list(problems())

    assert not found, "\n" + "\n".join(found)


def test_the_walls_between_packages_stand() -> None:
    """`lint-imports` checks the contracts; this checks that none was removed."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    walls = {(wall["type"], *wall.get("source_modules", ())) for wall in linter["contracts"]}

    assert set(linter["root_packages"]) == {"holdfast", "holdfast_worker"}
    assert walls >= {
        ("layers",),
        ("acyclic_siblings",),
        ("independence",),
        ("forbidden", "holdfast"),
        ("forbidden", "holdfast.api", "holdfast.submission", "holdfast.services"),
        ("forbidden", "holdfast.cli", "holdfast.client", "holdfast.prove", "holdfast.reproduce"),
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
    layered = {wall["containers"][0] for wall in linter["contracts"] if wall.get("exhaustive")}
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
