"""Hooks of MkDocs that make the documentation site from pages that are also read on a code host.

* The navigation is `index.md`, which a test holds complete.
* CONTRIBUTING.md and CHANGELOG.md are pages, too. Links to other files outside of `docs` become their text.
* Lists are indented as Python-Markdown expects.
* Scripts are in files, because the service allows no inline scripts.

MkDocs calls functions by their names, `on_...`, with arguments by name. They run in the environment of
`requirements-docs.lock`, so nothing here imports Holdfast.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
OUTSIDE: Final = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the site that are files beside `docs`, by their path in the checkout."""
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_ITEM: Final = re.compile(r"([*-]|\d+\.) +")
_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_SCRIPTS: Final = "assets/inline"
_scripts: dict[str, str] = {}
"""Inline scripts of all pages by the names of their files."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version, and navigate as the index does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_name = f"Holdfast {project['version']}"
    config.nav = ["index.md", *navigation(Path(config.docs_dir, "index.md").read_text())]
    if os.environ.get("HOLDFAST_DOCS_VERSIONS"):
        config.extra["version"] = {"provider": "mike"}
    return config


def navigation(index: str) -> list[dict[str, Any]]:
    """The sections of the index, with their pages, and their groups of pages if they have any."""
    sections = re.split(r"^## (.+)\n", index, flags=re.MULTILINE)[1:]
    found: list[dict[str, Any]] = []
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        first, *groups = re.split(r"^([A-Z][^\n\[]*):$", text, flags=re.MULTILINE)
        pages: list[dict[str, Any]] = _pages(first)
        pages += [
            {name: _pages(part)} for name, part in zip(groups[::2], groups[1::2], strict=True)
        ]
        found.append({title: pages})
    return [*found, {"Changes": "changelog.md"}]


def _pages(text: str) -> list[dict[str, Any]]:
    links = [
        (title.strip("`"), _target(url, "docs/index.md")) for title, url in _LINK.findall(text)
    ]
    return [{title[0].upper() + title[1:]: page} for title, page in links if page]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are beside `docs`."""
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links whose meaning differs in the site."""
    names = {page: name for name, page in OUTSIDE.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def replace(match: re.Match[str]) -> str:
        text, url = match.groups()
        if re.match(r"[a-z]+:|#", url):
            return match[0]
        target = _target(url, source)
        if target is None:
            return text
        return f"[{text}]({posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or '.')})"

    parts = _CODE.split(with_wide_lists(markdown))
    return "".join(part if n % 2 else _LINK.sub(replace, part) for n, part in enumerate(parts))


def with_wide_lists(markdown: str) -> str:
    """Indent what belongs to an item of a list by four spaces: Python-Markdown ends the item otherwise."""
    lines: list[str] = []
    items: list[
        tuple[int, int]
    ] = []  # The columns of the contents of open items: as written, and wide.
    is_code = has_blocks = False
    for line in markdown.splitlines():
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        while text and not is_code and items and indent < items[-1][0]:
            items.pop()
        written, wide = items[-1] if items else (0, 0)
        wide += max(indent - written, 0)
        marker = None if is_code else _ITEM.match(text)
        if marker and has_blocks and lines[-1]:
            lines.append(
                ""
            )  # Otherwise the item would continue the last paragraph of the one before.
        lines.append(" " * wide + text if items and text else line)
        if text.startswith("```"):
            is_code = not is_code
        if marker:
            items.append((indent + len(marker[0]), wide + 4))
        has_blocks = bool(items) and not marker and (has_blocks or not text or is_code)
    return "\n".join(lines) + "\n"


def _target(url: str, source: str) -> str | None:
    """The page of the site that a link in `source` leads to, with its anchor; None if it is not in the site."""
    file, hash_, anchor = url.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
    if path in OUTSIDE:
        return f"{OUTSIDE[path]}{hash_}{anchor}"
    return f"{path.removeprefix('docs/')}{hash_}{anchor}" if path.startswith("docs/") else None


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Move the scripts of a page into files."""
    return _without_inline_scripts(output, page.url)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Move the scripts of a page that is no document into files."""
    if not template_name.endswith(".html"):
        return output_content
    return _without_inline_scripts(output_content, template_name)


def _without_inline_scripts(html: str, url: str) -> str:
    depth = posixpath.relpath(_SCRIPTS, posixpath.dirname(url) or ".")

    def replace(match: re.Match[str]) -> str:
        name = f"{hashlib.sha256(match[1].encode()).hexdigest()[:16]}.js"
        _scripts[name] = match[1]
        return f'<script src="{depth}/{name}"></script>'

    # The theme gives the dialog of the search no name for screen readers.
    html = html.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )
    return _SCRIPT.sub(replace, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the scripts of all pages, and remove what has no reader: maps, and files that need the site's public address."""
    folder = Path(config.site_dir, _SCRIPTS)
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in _scripts.items():
        (folder / name).write_text(script)
    for path in Path(config.site_dir).rglob("*"):
        if path.suffix in {".map", ".gz"} or path.name in {"404.html", "sitemap.xml"}:
            path.unlink()
