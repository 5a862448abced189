"""The store check of `sky_tasks/smoke.yaml`, against stores on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from fake_s3 import FakeS3
from support.cloud_servers import CloudServer
from worker.support.s3_servers import BUCKET, credentials, moto, rclone

TASK = yaml.safe_load((Path(__file__).parents[3] / "sky_tasks/smoke.yaml").read_text())


def smoke(endpoint: str, store: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**credentials(endpoint), "AWS_ENDPOINT_URL_S3": endpoint, "STORE": store, "PATH": path}
    env |= more
    command = ["bash", "-c", TASK["run"]]
    return subprocess.run(command, env=env, text=True, capture_output=True, check=False)


def test_usable_store_passes_and_is_left_unchanged() -> None:
    with moto() as (endpoint, _):
        done = smoke(endpoint, f"s3://{BUCKET}/pre/fix")
        again = smoke(endpoint, f"s3://{BUCKET}")

    assert done.returncode == again.returncode == 0, done.stderr
    assert "conditional writes are supported" in done.stdout
    assert done.stdout.endswith(f"The store s3://{BUCKET}/pre/fix can be used from here.\n")


def test_store_that_ignores_conditions_passes(tmp_path: Path) -> None:
    with rclone(tmp_path / "objects") as endpoint:
        done = smoke(endpoint, f"s3://{BUCKET}/pre")

    assert done.returncode == 0, done.stderr
    assert "conditional writes are not supported" in done.stdout
    assert not list((tmp_path / "objects").rglob("smoke-*"))


def test_missing_bucket_is_named() -> None:
    with moto() as (endpoint, _):
        failed = smoke(endpoint, "s3://nobody/x")

    assert failed.returncode == 1
    assert "FAILED  write s3://nobody/x/smoke-" in failed.stderr
    assert "NoSuchBucket" in failed.stderr


def test_store_of_google_passes_and_is_left_unchanged(one_s3: FakeS3) -> None:
    one_s3.renew()
    own = {"GOOGLE_BASE_URL": one_s3.google, "GOOGLE_BEARER_TOKEN": "any"}

    done = smoke("", "gs://bucket/pre/fix", **own)

    assert done.returncode == 0, done.stderr
    assert "conditional writes are supported" in done.stdout
    assert done.stdout.endswith("The store gs://bucket/pre/fix can be used from here.\n")
    assert one_s3.keys("bucket") == []


def test_store_of_azure_passes_and_a_missing_one_is_named(azurite: CloudServer) -> None:
    done = smoke("", "az://bucket/smoke", **azurite.variables)
    failed = smoke("", "az://nobody/x", **azurite.variables)

    assert done.returncode == 0, done.stderr
    assert "conditional writes are supported" in done.stdout
    assert failed.returncode == 1
    assert "FAILED  write az://nobody/x/smoke-" in failed.stderr
    assert "ContainerNotFound" in failed.stderr
    assert "Debug" not in failed.stderr
