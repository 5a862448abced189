"""`holdfast prove` shows that a script resumes exactly, and the job keeps the certificate."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile

import pytest
import yaml
from support.live_service import EXAMPLE, HOLDFAST, Service

STEPS = 24


@pytest.mark.full
def test_node_replaced_alone_is_part_of_the_proof(service: Service) -> None:
    """Node 1 is replaced while node 0 waits; then node 0 is lost, and both start again."""
    file = service.folder / "job.yaml"
    job = {
        "name": "pair",
        "num_nodes": 2,
        "workdir": str(EXAMPLE),
        "run": "holdfast-worker run train.py --steps 5000",
        "holdfast": {"checkpoint": {"store": f"file://{service.folder}/store", "every": "15m"}},
    }
    file.write_text(yaml.safe_dump(job))

    certificate = service.json("prove", str(file), "--steps", f"{3 * STEPS}", "--kills", "2")
    [straight, proven] = sorted(service.json("ps"), key=lambda job: str(job["submitted_at"]))
    shown = " ".join(service.cli("show", proven["id"]).stdout.split())

    assert certificate["holds"] is True
    assert certificate["against"] == straight["id"]
    assert (certificate["preemptions"], certificate["replaced_nodes"]) == (2, 1)
    assert (certificate["batches"], certificate["other_batches"]) == (2 * 3 * STEPS, 0)
    assert proven["attempt"] == 2
    assert "preempted 2 times, a node replaced while the others waited; after" in shown


@pytest.mark.full
def test_proven_resume_yields_certificate_in_the_debug_bundle(
    service: Service,
) -> None:
    """The job is meant for a cloud node; its proof runs here."""
    file = service.folder / "job.yaml"
    job = {
        "name": "tiny",
        "workdir": str(EXAMPLE),
        "resources": {"infra": "aws", "accelerators": "A100:8", "use_spot": True},
        "run": "holdfast-worker run train.py --steps 5000",
        "holdfast": {
            "checkpoint": {"store": f"file://{service.folder}/store", "every": "15m"},
            "limits": {"max_cost_usd": 600},
        },
    }
    file.write_text(yaml.safe_dump(job))

    prove = subprocess.Popen(
        [HOLDFAST, "prove", str(file), "--steps", f"{STEPS}", "--kills", "1", "--json"],
        env=service.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    result, progress = prove.communicate(timeout=280)
    assert prove.returncode == 0, progress
    certificate = json.loads(result)
    [straight, proven] = sorted(service.json("ps"), key=lambda job: str(job["submitted_at"]))
    shown = service.cli("show", proven["id"]).stdout
    service.cli("bundle", proven["id"], "-o", "proof.zip")
    bundle = zipfile.ZipFile(io.BytesIO((service.folder / "proof.zip").read_bytes()))
    kept = json.loads(bundle.read(f"holdfast-{proven['id']}/certificate.json"))

    assert certificate["holds"] is True
    assert (certificate["against"], certificate["steps"]) == (straight["id"], STEPS)
    assert certificate["preemptions"] == proven["preemptions"] == 1
    assert certificate["weights_sha256"] == certificate["other_weights_sha256"] != ""
    assert (certificate["batches"], certificate["other_batches"]) == (STEPS, 0)
    assert certificate["values"] >= STEPS
    assert certificate["numbers"] == certificate["other_numbers"]
    assert certificate["versions"].keys() >= {"holdfast", "python", "torch", "device"}
    assert kept == proven["proof"] == certificate
    assert f"preempted once; after {STEPS} steps its weights" in " ".join(shown.split())
