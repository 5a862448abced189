"""The curl requests in the guide to uploads, executed literally."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from holdfast.code_upload.tree import PIECE_BYTES
from support.principals import OWN, create_principals
from support.simulated_service import SimulatedService, served

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
GUIDE = Path(__file__).parents[2] / "docs/howto/upload-code.md"


def test_the_requests_of_the_guide_upload_and_submit(
    world: SimulatedService, tmp_path: Path
) -> None:
    _, _, guide = GUIDE.read_text().partition("## Upload without the client")
    submission, large = re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
    principals = create_principals(world)
    token, _ = principals.token("member", project=OWN)
    (tmp_path / "train.py").write_text("print(1)\n")
    weights = os.urandom(PIECE_BYTES) + b"end"
    (tmp_path / "weights.bin").write_bytes(weights)

    with served(world) as url:
        environment = {**os.environ, "HOLDFAST_URL": url, "HOLDFAST_TOKEN": token}
        job, pieces = (
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", words],
                cwd=tmp_path,
                env=environment,
                text=True,
                capture_output=True,
                check=False,
            )
            for words in (submission, large)
        )

    assert job.returncode == 0, job.stdout + job.stderr
    assert pieces.returncode == 0, pieces.stdout + pieces.stderr
    uploads, spec = world.services.uploads, world.services.journal.submission(json.loads(job.stdout)["id"]).spec  # fmt: skip
    assert (uploads.folder(spec["workdir"]) / "train.py").read_text() == "print(1)\n"
    entry = {"path": "weights.bin", "size_bytes": len(weights), "pieces": pieces.stdout.split()}
    tree = principals.with_token(token).post("/v1/code/trees", json={"entries": [entry]}).json()
    assert tree["missing"] == []
