"""Small wheels, built without build tools, for package indexes without a network."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path


def wheel_of(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """Build a wheel of a package whose module has its version."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        f"{name}/__init__.py": f'__version__ = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return wheel
