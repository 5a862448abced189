"""Write the models of the SDK and the list of its methods: `python docs/sdk_reference.py`.

The models are the schemas of the API; `holdfast/sdk/models.py` names them in one place. The methods are listed in
`docs/reference/sdk.md`. `--check` writes nothing, and ends with 1 if a file is not current.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.api import schemas
from holdfast.client.calls import endpoint, sequence
from holdfast.client.resources import ClientResources
from holdfast.errors import HoldfastError
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "service/holdfast/sdk/models.py"
PAGE = ROOT / "docs/reference/sdk.md"
BEGIN, END = "<!-- methods: docs/sdk_reference.py -->", "<!-- end of methods -->"
NOT_FOR_USERS = {"base", "workers"}
"""Modules of schemas that only workers or other schemas use."""


def models() -> dict[str, list[str]]:
    """The names of the schemas by module."""
    found = {}
    for info in pkgutil.iter_modules(schemas.__path__):
        if info.name not in NOT_FOR_USERS:
            module = importlib.import_module(f"{schemas.__name__}.{info.name}")
            names = (
                name
                for name, value in vars(module).items()
                if inspect.isclass(value)
                and issubclass(value, BaseModel)
                and value.__module__ == module.__name__
                and not name.startswith("_")
            )
            found[module.__name__] = sorted(names, key=str.lower)
    return found


def models_text() -> str:
    """The text of the module with all models."""
    by_module = models()
    names = sorted(name for found in by_module.values() for name in found)
    imports = "\n".join(
        f"from {module} import (\n" + "".join(f"    {name},\n" for name in found) + ")"
        for module, found in by_module.items()
    )
    listed = "".join(f'    "{name}",\n' for name in names)
    return (
        '"""All models of the API; `python docs/sdk_reference.py` writes this list."""\n\n'
        f"{imports}\n\n__all__ = [\n{listed}]\n"
    )


def subjects() -> Iterator[tuple[str, type]]:
    """The attributes of a client and the classes of their objects."""
    client = ClientResources(None)  # type: ignore[arg-type]  # It sends nothing.
    for name, value in vars(client).items():
        if not name.startswith("_"):
            yield name, type(value)
    yield "channels(project)", type(client.channels(""))


def methods_text() -> str:
    """The section of the reference with all methods."""
    return "\n".join(
        f"### client.{name}\n\n{inspect.getdoc(kind)}\n\n{_table(kind)}\n"
        for name, kind in subjects()
    )


def _table(kind: type) -> str:
    rows = [
        f"| `{name}{_signature(value)}` | {_result(value)} | {_summary(value)} |"
        for owner in reversed(kind.__mro__)
        for name, value in vars(owner).items()
        if not name.startswith("_")
        and (isinstance(value, endpoint | sequence) or inspect.isfunction(value))
    ]
    return "\n".join(["| method | result | |", "|---|---|---|", *rows])


def _build(value: Any) -> Any:
    return getattr(value, "__wrapped__", value)


def _signature(value: Any) -> str:
    parameters = list(inspect.signature(_build(value)).parameters.values())[1:]
    shown, is_keyword = [], False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            shown.append("*")
        prefix = "**" if each.kind is each.VAR_KEYWORD else ""
        has_default = each.default is not each.empty and not prefix
        default = "..." if inspect.isfunction(each.default) else repr(each.default)
        shown.append(f"{prefix}{each.name}" + (f"={default}" if has_default else ""))
    return f"({', '.join(shown)})"


def _result(value: Any) -> str:
    annotation = str(inspect.signature(_build(value)).return_annotation)
    inner = re.fullmatch(r"(?:Call|Many)\[(.+)\]", annotation)
    text = inner[1] if inner else annotation
    return f"iterator of `{text}`" if annotation.startswith("Many") else f"`{text}`"


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(_build(value)) or "").split("\n\nRaises")[0].split()).replace(
        "|", "\\|"
    )


def errors_text() -> str:
    """The table of the error classes, each indented below the class that also catches it."""
    rows = [
        f"| {'&nbsp;' * 4 * depth}`{kind.__name__}` | `{kind.slug()}` | {kind.status} | {kind.title()} |"
        for depth, kind in _kinds(HoldfastError, 0)
    ]
    return "\n".join(["| class | code | status | |", "|---|---|---|---|", *rows])


def _kinds(kind: type[HoldfastError], depth: int) -> Iterator[tuple[int, type[HoldfastError]]]:
    if kind.__module__ == HoldfastError.__module__:
        yield depth, kind
        for child in kind.__subclasses__():
            yield from _kinds(child, depth + 1)


def page_text(now: str) -> str:
    """The reference with its generated part renewed."""
    before, rest = now.split(BEGIN)
    after = rest.split(END)[1]
    return (
        f"{before}{BEGIN}\n\n{methods_text()}\n## Error classes\n\n{errors_text()}\n\n{END}{after}"
    )


def main() -> None:
    """Write both files, or compare them."""
    wanted = {MODELS: models_text(), PAGE: page_text(PAGE.read_text())}
    if "--check" in sys.argv:
        sys.exit(any(path.read_text() != text for path, text in wanted.items()))
    for path, text in wanted.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
