"""The image and the team's installation, as far as can be seen without a container engine.

That the parts work together is tested elsewhere with the parts themselves: a real PostgreSQL and a real S3 server.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.settings import DEFAULT_PORT, Market, Settings

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

every_service = pytest.mark.parametrize("name", list(SERVICES))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest) with continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    parts = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(word.upper(), rest.strip()) for word, _, rest in parts]


def test_the_installation_has_its_three_parts() -> None:
    assert set(COMPOSE) == {"name", "services", "volumes"}
    assert set(SERVICES) == {"holdfast", "postgres", "s3"}
    assert SERVICES["s3"]["image"].startswith("chrislusf/seaweedfs:")
    assert SERVICES["holdfast"]["image"] == f"holdfast:{VERSION}"
    assert SERVICES["holdfast"]["build"]["context"] == "."


@every_service
def test_every_image_is_pinned_to_a_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].rpartition(":")

    assert re.match(r"\d+\.\d+", tag), f"{name}: {tag!r} names no version"


@every_service
def test_nobody_is_root(name: str) -> None:
    assert SERVICES[name]["user"].partition(":")[0] not in {"", "0", "root"}
    assert not SERVICES[name].get("privileged")
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]


@every_service
def test_every_part_tells_when_it_is_well(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(check)


@every_service
def test_what_a_part_keeps_outlives_its_container(name: str) -> None:
    volumes = [volume.partition(":")[0] for volume in SERVICES[name]["volumes"]]

    assert volumes
    assert set(volumes) <= set(COMPOSE["volumes"])


def test_the_service_waits_until_its_parts_are_well() -> None:
    waits = SERVICES["holdfast"]["depends_on"]

    assert {part: waits[part]["condition"] for part in waits} == {
        "postgres": "service_healthy",
        "s3": "service_healthy",
    }


@every_service
def test_ports_are_open_to_this_machine_alone(name: str) -> None:
    ports = SERVICES[name].get("ports", [])

    assert all(port.startswith("127.0.0.1:") for port in ports), ports


@every_service
def test_secrets_come_from_outside(name: str) -> None:
    env = SERVICES[name]["environment"]
    secret = {
        key for key in env if re.search(r"PASSWORD|SECRET|ACCESS_KEY|TOKEN|DATABASE_URL", key)
    }

    assert secret
    for key in secret:
        # `:?` refuses to start without a value; a default would be everybody's password.
        assert re.search(r"\$\{[A-Z0-9_]+:\?[^}]+\}", env[key]), key
    assert not re.search(r"\$\{[A-Z0-9_]*(PASSWORD|SECRET|KEY)[A-Z0-9_]*(:?-|\})", str(env))


def test_the_service_is_told_only_settings_that_exist() -> None:
    known = {f"HOLDFAST_{field.upper()}" for field in Settings.model_fields}
    known |= {f"HOLDFAST_LOCAL_{field.upper()}" for field in Market.model_fields}

    told = {key for key in SERVICES["holdfast"]["environment"] if key.startswith("HOLDFAST_")}

    assert told <= known
    assert {"HOLDFAST_HOME", "HOLDFAST_DATABASE_URL"} <= told


def test_the_parts_agree_on_names_ports_and_keys() -> None:
    service, postgres, s3 = (SERVICES[name] for name in ("holdfast", "postgres", "s3"))
    database = service["environment"]["HOLDFAST_DATABASE_URL"]

    assert database.startswith(f"postgresql://{postgres['environment']['POSTGRES_USER']}:")
    assert database.endswith(f"@postgres:5432/{postgres['environment']['POSTGRES_DB']}")
    assert postgres["environment"]["POSTGRES_PASSWORD"] in database
    assert service["environment"]["AWS_ENDPOINT_URL_S3"] == "http://s3:8333"
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert service["environment"][key] == s3["environment"][key]
    assert service["ports"] == [f"127.0.0.1:{DEFAULT_PORT}:{DEFAULT_PORT}"]
    home = service["environment"]["HOLDFAST_HOME"]
    assert f"home:{home}" in service["volumes"]
    assert ("VOLUME", home) in instructions()


def test_the_image_stands_on_a_pinned_slim_python() -> None:
    bases = [rest for word, rest in instructions() if word == "FROM"]

    assert len(bases) == 2, "one stage builds the wheel, one runs it"
    assert len({base.partition(" ")[0] for base in bases}) == 1
    assert all(re.match(r"python:3\.11\.\d+-slim-[a-z]+( AS \w+)?$", base) for base in bases)


def test_the_image_fetches_nothing_by_address_and_pins_what_it_installs() -> None:
    assert not [word for word, _ in instructions() if word == "ADD"]
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert installs
    for rest in installs:
        assert "--constraint requirements.lock" in rest
        assert "--no-cache-dir" in rest


def test_the_image_runs_as_nobody_special_and_tells_when_it_is_well() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]

    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)
    assert ("ENTRYPOINT", '["holdfast"]') in instructions()
    assert ("CMD", '["serve", "--host", "0.0.0.0"]') in instructions()
    assert ("EXPOSE", str(DEFAULT_PORT)) in instructions()


def test_the_image_has_no_torch_unless_it_is_asked_for() -> None:
    assert ("ARG", "EXTRAS=service,postgres") in instructions()


def test_the_image_is_given_all_that_the_wheel_is_made_of_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    ignored, *given = [line for line in lines if line and not line.startswith("#")]
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"LICENSE", "README.md", "pyproject.toml", "requirements.lock"}
    needed |= {path.partition("/")[0] for path in wheel["packages"]} | set(wheel["force-include"])

    assert ignored == "*"
    assert {line[1:] for line in given if line.startswith("!")} == needed
