"""Old releases of `datasets` with NumPy 2: patched only in ranks that import them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

FORMATTING = """
import numpy as np

def as_rows(rows):
    if any(isinstance(row, np.ndarray) for row in rows):
        return np.array(rows, copy=False, dtype=object)
    return np.array(rows, copy=False)
"""
"""The calls of datasets 2.19 that NumPy 2 refuses."""
SCRIPT = """
from datasets.formatting import formatting

print(formatting.as_rows([[1, 2], [3, 4]]).tolist())
"""


def run_rank(folder: Path, release: str) -> subprocess.CompletedProcess[str]:
    """Run a script that formats rows like a rank does, with a fake release of `datasets`."""
    package = folder / "datasets" / "formatting"
    package.mkdir(parents=True)
    (package / "formatting.py").write_text(FORMATTING)
    for init in (package / "__init__.py", package.parent / "__init__.py"):
        init.touch()
    known = folder / f"datasets-{release}.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: datasets\nVersion: {release}\n")
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "holdfast_worker.node.rank_entrypoint", str(folder / "train.py")],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_old_datasets_is_patched_for_numpy_2_with_a_log_line(tmp_path: Path) -> None:
    done = run_rank(tmp_path, "2.19.0")

    numpy = metadata.version("numpy")
    assert done.stdout == "[[1, 2], [3, 4]]\n"
    assert f"holdfast: NumPy 2 patch applied (datasets 2.19.0, NumPy {numpy})\n" in done.stderr


@pytest.mark.parametrize("release", ["2.21.0", "unknown"])
def test_other_releases_of_datasets_stay_as_they_are(tmp_path: Path, release: str) -> None:
    done = run_rank(tmp_path, release)

    assert done.stdout == ""
    assert "patch applied" not in done.stderr
    assert "Unable to avoid copy while creating an array" in done.stderr
