"""The image of the Dockerfile, built by Buildah, runs as the chart and the Compose file expect.

No registry is needed: debootstrap makes the base image. It takes some minutes, root, and 3 GB below /var/tmp.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest
import yaml
from support.live_service import PATIENCE_S, free_port
from support.requirements import skip_or_fail

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT))

from release import packages  # noqa: E402

BASE = "docker.io/library/python:made-by-debootstrap"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
MIRROR: Final = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")


class Buildah:
    """Buildah with storage of its own, which needs neither a daemon nor overlay mounts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._options = [f"--root={folder}/storage", f"--runroot={folder}/run"]
        self._environment = {
            **os.environ,
            "STORAGE_DRIVER": "vfs",
            "BUILDAH_ISOLATION": "chroot",
        }

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["buildah", *self._options, *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str | Path) -> str:
        process = self.start(*words)
        output, _ = process.communicate()
        assert process.returncode == 0, output[-3000:]
        return output.strip()


@pytest.fixture(scope="module")
def buildah() -> Iterator[Buildah]:
    if os.geteuid() or not (shutil.which("buildah") and shutil.which("debootstrap")):
        skip_or_fail("the image is built by root with Buildah and debootstrap")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-image-", dir="/var/tmp"))
    try:
        yield Buildah(folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def base(buildah: Buildah) -> str:
    """An image in place of the official one: Debian with a `python` and a `pip`."""
    system = buildah.folder / "base"
    packages = "--include=python3,python3-venv,ca-certificates"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", packages, "bookworm", system, MIRROR],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    subprocess.run(["chroot", system, "python3", "-m", "venv", "/opt/python"], check=True)
    container = buildah.run("from", "scratch")
    buildah.run("add", "--quiet", container, system, "/")
    # Registries behind a proxy have a certificate that only this machine knows.
    variables = {
        "PATH": "/opt/python/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "NODE_EXTRA_CA_CERTS": CERTIFICATES,
        "PIP_CERT": CERTIFICATES,
    }
    settings = [f"--env={name}={value}" for name, value in variables.items()]
    buildah.run("config", *settings, container)
    buildah.run("commit", "--quiet", "--squash", container, BASE)
    buildah.run("rm", container)
    shutil.rmtree(system)
    return BASE


@pytest.fixture(scope="module")
def image(buildah: Buildah, base: str) -> str:
    """The image of the service, built from this checkout."""
    name = "localhost/holdfast:test"
    shared = [f"--volume={path}:{path}:ro" for path in ("/etc/ssl/certs", "/etc/pip.conf", "/etc/npmrc") if Path(path).exists()]  # fmt: skip
    buildah.run(
        "bud",
        "--pull-never",
        "--format=docker",
        *shared,
        f"--build-arg=PYTHON_IMAGE={BASE}",
        f"--tag={name}",
        ROOT,
    )
    return name


@pytest.mark.timeout(1800)
def test_image_serves_without_root(buildah: Buildah, image: str) -> None:
    """Start it as the chart does: with a secret, an own home, and without rights."""
    container = buildah.run("from", "--pull-never", image)
    config = json.loads(buildah.run("inspect", container))["Docker"]["config"]
    assert config["User"] == "10001:10001"
    assert buildah.run("run", container, "--", "id", "-u") == "10001"
    assert "holdfast" in buildah.run("run", container, "--", "holdfast", "--version")
    bill = json.loads(buildah.run("run", container, "--", "cat", "/app/sbom.cdx.json"))
    assert {"fastapi", "holdfast-train"} <= {part["name"] for part in bill["components"]}
    port, home = free_port(), buildah.folder / "home"
    home.mkdir()
    (home / "key").write_text(secrets.token_hex(32))
    for path in (home, home / "key"):
        os.chown(path, 10001, 10001)

    variables = {
        "HOLDFAST_SHARES_HOME": "false",
        "HOLDFAST_SECRET_FILE": "/var/lib/holdfast/key",
    }
    settings = [f"--env={name}={value}" for name, value in variables.items()]
    settings.append(f"--volume={home}:/var/lib/holdfast:rw")
    words = ("holdfast", "serve", "--host", "127.0.0.1", "--port", str(port))
    service = buildah.start("run", *settings, container, "--", *words)
    try:
        for path in ("/healthz", "/readyz", "/", "/docs/"):
            answer = _answer(f"http://127.0.0.1:{port}{path}", service)
            assert answer.status_code == 200, (path, answer.text)
        assert (home / "token").read_text().startswith("hf_")
        assert (home / "token").stat().st_uid == 10001
    finally:
        service.send_signal(signal.SIGTERM)
        service.communicate(timeout=60)
        buildah.run("rm", container)


@pytest.mark.timeout(1800)
def test_health_check_and_command_are_recorded(buildah: Buildah, image: str) -> None:
    config = json.loads(buildah.run("inspect", "--type=image", image))["Docker"]["config"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())

    assert config["Entrypoint"] == ["holdfast"]
    assert config["Cmd"] == ["serve", "--host", "0.0.0.0"]
    assert config["Labels"]["org.opencontainers.image.title"] == "Holdfast"
    assert "healthz" in " ".join(config["Healthcheck"]["Test"])
    assert compose["services"]["holdfast"]["user"] == config["User"]


@pytest.mark.timeout(600)
def test_image_of_a_release_is_an_archive_with_labels(
    buildah: Buildah, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = f'graphroot = "{buildah.folder}/storage"\nrunroot = "{buildah.folder}/run"\n'
    (tmp_path / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{places}')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    (tmp_path / "Dockerfile").write_text('FROM scratch\nCOPY Dockerfile /\nHEALTHCHECK CMD ["x"]\n')
    labels = {"org.opencontainers.image.version": "1.2.3"}

    archive = packages.build_image(tmp_path, tmp_path / "image.tar", labels, 1_700_000_000)

    pulled = buildah.run("pull", "--quiet", f"docker-archive:{archive}")
    found = json.loads(buildah.run("inspect", "--type=image", pulled.splitlines()[-1]))["Docker"]
    assert found["config"]["Labels"].items() >= labels.items()
    assert found["config"]["Healthcheck"]["Test"] == ["CMD", "x"]
    assert found["created"].startswith("2023-11-14")


def _answer(url: str, service: subprocess.Popen[str]) -> httpx2.Response:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return httpx2.get(url, timeout=5.0, verify=False)
        except httpx2.TransportError:
            assert service.poll() is None, service.communicate()[0]
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.2)
