"""The chart, rendered by Helm itself: valid for several versions of Kubernetes, and safe by default."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.settings import DEFAULT_PORT, Settings
from support.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
PROGRAMS = ROOT / "build" / "chart" / "bin"
VERSIONS = ["1.27", "1.31", "1.37"]
LEAST = {"publicUrl": "https://holdfast.example.com", "secret.name": "holdfast"}
ALL = {
    **LEAST,
    "replicas": "3",
    "image.repository": "registry.example.com/team/holdfast",
    "image.digest": f"sha256:{'0' * 64}",
    "skypilot.url": "http://skypilot:46580",
    "env.HOLDFAST_CODE_MB": "4096",
    "ingress.enabled": "true",
    "ingress.className": "nginx",
    "ingress.tlsSecretName": "holdfast-tls",
    "metrics.serviceMonitor": "true",
    "metrics.tokenSecretName": "holdfast-metrics",
    "metrics.alerts": "true",
    "serviceAccount.annotations.eks\\.amazonaws\\.com/role-arn": "arn:aws:iam::1:role/holdfast",
    "nodeSelector.disk": "ssd",
}

pytestmark = pytest.mark.usefixtures("helm")


@pytest.fixture(scope="module")
def helm() -> None:
    if not (PROGRAMS / "helm").exists():
        skip_or_fail("Helm is not installed; run make chart")


def helm_template(values: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = [
        word
        for name, value in values.items()
        for word in (
            "--set-string" if name.startswith(("env.", "nodeSelector.")) else "--set",
            f"{name}={value}",
        )
    ]
    return subprocess.run(
        [PROGRAMS / "helm", "template", "team", CHART, "--namespace", "ml", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def rendered(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the objects of the chart by their kind."""
    answer = helm_template(values)
    assert answer.returncode == 0, answer.stderr
    objects = [one for one in yaml.safe_load_all(answer.stdout) if one]
    return {one["kind"]: one for one in objects}


def pod(objects: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return spec


def container(objects: Mapping[str, Any]) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [LEAST, ALL], ids=["least", "all"])
def test_objects_are_valid(values: Mapping[str, str], version: str, tmp_path: Path) -> None:
    objects = rendered(values)
    for kind in ("ServiceMonitor", "PrometheusRule"):
        objects.pop(kind, None)  # Its schema belongs to the Prometheus operator.
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects.values()))

    checked = subprocess.run(
        [PROGRAMS / "kubernetes-validate", "--strict", "-k", version, file],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("passed") == len(objects), checked.stdout


def test_all_values_appear() -> None:
    objects = rendered(ALL)

    assert set(objects) == {
        "Deployment",
        "Ingress",
        "PodDisruptionBudget",
        "PrometheusRule",
        "Service",
        "ServiceAccount",
        "ServiceMonitor",
    }
    assert objects["Deployment"]["spec"]["replicas"] == 3
    assert container(objects)["image"] == f"registry.example.com/team/holdfast@sha256:{'0' * 64}"
    assert objects["Ingress"]["spec"]["rules"][0]["host"] == "holdfast.example.com"
    assert objects["Ingress"]["spec"]["tls"][0]["secretName"] == "holdfast-tls"
    assert pod(objects)["nodeSelector"] == {"disk": "ssd"}


def test_rules_of_the_chart_are_those_of_the_file() -> None:
    objects = rendered(ALL)

    rules = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yaml").read_text())
    assert objects["PrometheusRule"]["spec"] == rules
    label = objects["ServiceMonitor"]["spec"]["jobLabel"]
    assert objects["Service"]["metadata"]["labels"][label] == "holdfast"


def test_service_accepts_the_environment_of_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names, types and paths of variables are those that the service reads."""
    environment = {one["name"]: one for one in container(rendered(ALL))["env"]}
    secrets = {
        "HOLDFAST_DATABASE_URL": "postgresql://holdfast@db/holdfast",
        "HOLDFAST_SKYPILOT_TOKEN": "sky_token",
    }
    assert {name for name, one in environment.items() if "valueFrom" in one} == set(secrets)
    for name, one in environment.items():
        monkeypatch.setenv(name, one.get("value") or secrets[name])

    settings = Settings()

    known = {f"HOLDFAST_{name.upper()}" for name in Settings.model_fields}
    assert set(environment) <= known
    assert (settings.shares_home, settings.skypilot_shares_files) == (False, False)
    assert settings.public_url == LEAST["publicUrl"]
    mounts = {one["name"]: one["mountPath"] for one in container(rendered(ALL))["volumeMounts"]}
    assert settings.own_secret_file == Path(mounts["secret"]) / "secret"
    assert settings.home == Path(mounts["home"])
    assert settings.code_mb == 4096
    assert container(rendered(ALL))["ports"] == [{"name": "http", "containerPort": DEFAULT_PORT}]


def test_pods_have_no_rights_and_no_writable_root() -> None:
    objects = rendered(LEAST)

    assert pod(objects)["securityContext"]["runAsNonRoot"] is True
    assert pod(objects)["automountServiceAccountToken"] is False
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    user = re.search(r"USER (\d+):(\d+)", (ROOT / "Dockerfile").read_text())
    assert user
    assert pod(objects)["securityContext"]["runAsUser"] == int(user[1])


def test_probes_ask_what_the_service_serves() -> None:
    paths = json.loads((ROOT / "docs/reference/openapi.json").read_text())["paths"]
    probes = container(rendered(LEAST))

    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert probes[name]["httpGet"]["path"] in paths


def test_upgrade_never_stops_all_replicas() -> None:
    objects = rendered(LEAST)

    assert objects["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert objects["PodDisruptionBudget"]["spec"]["minAvailable"] == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"secret.name": ""}, "secret.name is empty: create a Secret with the keys secret"),
        ({"publicUrl": ""}, "publicUrl is empty: pass the address at which nodes reach"),
        ({"publicUrl": "holdfast.example.com"}, "publicUrl: Does not match pattern"),
        ({"replicas": "0"}, "replicas: Must be greater than or equal to 1"),
        ({"replcas": "2"}, "Additional property replcas is not allowed"),
        ({"env.HOLDFAST_HOME": "/x"}, "env.HOLDFAST_HOME: the chart sets this variable itself"),
        ({"metrics.serviceMonitor": "true"}, "metrics.tokenSecretName is empty: create a Secret"),
        ({"image.digest": "latest"}, "image.digest: Does not match pattern"),
    ],
)
def test_mistakes_in_values_get_a_sentence(change: Mapping[str, str], sentence: str) -> None:
    answer = helm_template({**LEAST, **change})

    assert answer.returncode != 0
    assert sentence in answer.stderr


def test_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert chart["appVersion"] == chart["version"] == project["version"]
