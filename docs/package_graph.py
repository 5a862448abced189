"""Draw the packages and their imports into CONTRIBUTING.md: `python docs/package_graph.py`.

An arrow means "imports". Arrows that follow from a chain of others are left out.
`--check` writes nothing, and ends with 1 if the picture is not current.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- package graph: docs/package_graph.py -->", "<!-- end of package graph -->"
SOURCES = (("Service", ROOT / "service/holdfast"), ("Worker", ROOT / "worker/holdfast_worker"))
OTHER_PROGRAMS = {"__main__", "adapters", "agent", "entry"}
"""Entry points and aliases, which nothing imports."""

Graph = Mapping[str, set[str]]


def imports(file: Path, root: Path) -> Iterator[str]:
    """The packages and modules directly below `root` that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, *path = name.split(".")
            if package == root.name and path and _exists(root / path[0]):
                yield path[0]


def _exists(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


def graph_of(root: Path) -> Graph:
    """For each package and module directly below `root`: those that it imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for file in sorted(root.rglob("*.py")):
        first = file.relative_to(root).parts[0].removesuffix(".py")
        if first not in OTHER_PROGRAMS | {"__init__"}:
            graph[first] |= set(imports(file, root)) - {first}
    return graph


def reduced(graph: Graph) -> Graph:
    """The graph without arrows that follow from others."""
    return {
        name: {
            target
            for target in targets
            if not any(target in _reached(graph, other) for other in targets - {target})
        }
        for name, targets in graph.items()
    }


def _reached(graph: Graph, start: str) -> set[str]:
    found, todo = set[str](), [start]
    while todo:
        new = graph.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def picture() -> str:
    """The text between the two marks in CONTRIBUTING.md."""
    return "\n".join([BEGIN, *(line for source in SOURCES for line in _drawn(*source)), END])


def _drawn(title: str, root: Path) -> Iterable[str]:
    graph = reduced(graph_of(root))
    arrows = [f"    {a} --> {b}" for a in sorted(graph) for b in sorted(graph[a])]
    return [f"\n{title}:\n", "```mermaid", "flowchart TD", *arrows, "```"]


def main() -> int:
    """Write the picture, or check it."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    current = f"{before}{picture()}{after}"
    if "--check" in sys.argv:
        return 0 if page == current else 1
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
