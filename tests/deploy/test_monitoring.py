"""Alert rules, the scrape configuration and the Grafana provisioning of the monitoring, as Prometheus's own program reads them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
GRAFANA = ROOT / "deploy" / "grafana"
RUNBOOK = ROOT / "docs" / "howto" / "alerts.md"
PROMTOOL = ROOT / "build" / "promtool" / "promtool"
ALERTS: Final[list[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.fixture
def promtool() -> Path:
    if not PROMTOOL.exists():
        skip_or_fail("promtool is not installed; run make promtool")
    return PROMTOOL


def checked(*words: str | Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_valid(promtool: Path) -> None:
    assert "SUCCESS" in checked(promtool, "check", "rules", MONITORING / "alerts.yaml")


def test_scrape_configuration_is_valid(promtool: Path) -> None:
    # The token exists in the container only.
    checked(promtool, "check", "config", "--syntax-only", MONITORING / "prometheus.yaml")


def test_alerts_fire_for_what_they_are_about(promtool: Path, tmp_path: Path) -> None:
    """All of them fire in a service in which all goes wrong but its end, and none in a healthy one."""
    tests = (Path(__file__).parent / "alerts_test.yaml").read_text()
    file = tmp_path / "tests.yaml"
    file.write_text(
        tests.replace("[ALERTS]", f"[{MONITORING / 'alerts.yaml'}]").replace(
            "FIRING", str(len(ALERTS) - 1)
        )
    )

    assert "SUCCESS" in checked(promtool, "test", "rules", file)


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_every_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    path, _, anchor = rule["annotations"]["runbook"].partition("#")

    assert ROOT / path == RUNBOOK
    assert anchor == rule["alert"].lower()
    section = RUNBOOK.read_text().partition(f"### {rule['alert']}\n")[2].partition("\n### ")[0]
    assert len(section.split()) > 15
    assert rule["labels"]["severity"] in {"critical", "warning"}


def test_runbook_has_no_other_alerts() -> None:
    described = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)

    assert described == [rule["alert"] for rule in ALERTS]


def test_containers_mount_what_the_configuration_names() -> None:
    prometheus, grafana = SERVICES["prometheus"], SERVICES["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in prometheus["volumes"])
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    (scrape,) = config["scrape_configs"]
    token = Path(scrape["authorization"]["credentials_file"])
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/holdfast.yaml").read_text())[
        "providers"
    ]

    assert scrape["job_name"] == "holdfast", "alerts and panels select this job"
    assert [token.name] == prometheus["secrets"]
    assert {Path(path).name for path in config["rule_files"]} <= {
        Path(path).name for path in mounted
    }
    assert source["url"] == "http://prometheus:9090"
    assert any(provider["options"]["path"] in volume for volume in grafana["volumes"])
    variables = json.loads((GRAFANA / "holdfast.json").read_text())["templating"]["list"]
    assert variables[0]["query"] == source["type"], "the dashboard finds the source by its type"
