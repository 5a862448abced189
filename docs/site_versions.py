"""Add this version to a folder with the documentation of several: `python docs/site_versions.py FOLDER PYTHON`.

FOLDER gets a folder for each version, `versions.json` for the list in the header of the pages, and an `index.html` that leads to
the newest. Any web server can serve it. PYTHON has MkDocs. A version that is there already is replaced.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAD = '<!doctype html>\n<title>Holdfast</title>\n<meta http-equiv="refresh" content="0; url={version}/">\n<a href="{version}/">Holdfast {version}</a>\n'


def main(folder: Path, python: str) -> None:
    """Build the site into its folder, and write the list again."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    folder.mkdir(parents=True, exist_ok=True)
    built = [python, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder.resolve() / version]
    subprocess.run(
        built,
        cwd=ROOT,
        env={**os.environ, "HOLDFAST_DOCS_VERSIONS": "1", "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    write_list(folder)


def write_list(folder: Path) -> None:
    """Write `versions.json` and `index.html` of the versions in a folder, the newest first."""
    versions = sorted(
        (path.name for path in folder.iterdir() if (path / "index.html").is_file()),
        key=_order,
        reverse=True,
    )
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    (folder / "index.html").write_text(LEAD.format(version=versions[0]))


def _order(version: str) -> tuple[list[int], bool, str]:
    """Numbers by size; a final version after its candidates."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    return numbers, bool(re.fullmatch(r"[\d.]+", version)), version


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
