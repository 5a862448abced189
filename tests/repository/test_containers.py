"""The image and the Compose file, as far as they can be checked without a container engine.

Other tests check that the parts work together, with a real PostgreSQL and a real S3 server.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.launchers.skypilot.version import VERSION as VERSION_OF_SKYPILOT
from holdfast.settings import DEFAULT_PORT, Settings, SimulatedMarketSettings
from holdfast.skypilot_server import SOURCE
from holdfast.skypilot_server.environment import server_environment
from holdfast.skypilot_server.process import MODULE

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

DIGEST = r"@sha256:[0-9a-f]{64}"

every_service = pytest.mark.parametrize("name", list(SERVICES))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, arguments), with continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    parts = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(word.upper(), rest.strip()) for word, _, rest in parts]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile by name; the last one has none."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = "before the first stage"
    for word, rest in instructions():
        if word == "FROM":
            name = rest.partition(" AS ")[2]
        found.setdefault(name, []).append((word, rest))
    return found


def test_installation_has_four_services_and_a_profile() -> None:
    assert set(COMPOSE) == {"name", "services", "secrets", "volumes"}
    optional = {name for name, service in SERVICES.items() if service.get("profiles")}
    assert set(SERVICES) - optional == {"holdfast", "skypilot", "postgres", "s3"}
    assert optional == {"prometheus", "grafana"}
    assert all(SERVICES[name]["profiles"] == ["monitoring"] for name in optional)
    assert SERVICES["s3"]["image"].startswith("chrislusf/seaweedfs:")
    assert SERVICES["holdfast"]["image"] == f"holdfast:{VERSION}"
    assert SERVICES["holdfast"]["build"]["context"] == "."


@every_service
def test_every_image_is_pinned_to_a_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].partition("@")[0].rpartition(":")

    assert re.match(r"v?\d+\.\d+", tag), f"{name}: {tag!r} names no version"


@every_service
def test_services_run_without_root(name: str) -> None:
    assert SERVICES[name]["user"].partition(":")[0] not in {"", "0", "root"}
    assert not SERVICES[name].get("privileged")
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]


@every_service
def test_every_service_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(check)


@every_service
def test_service_data_is_kept_in_named_volumes(name: str) -> None:
    volumes = [volume.split(":") for volume in SERVICES[name]["volumes"]]
    files = [volume for volume in volumes if volume[0].startswith("./deploy/")]
    named = {volume[0] for volume in volumes if volume not in files}

    assert named
    assert named <= set(COMPOSE["volumes"])
    assert all(mode == "ro" and (ROOT / path).exists() for path, _, mode in files)


def test_service_waits_for_healthy_dependencies() -> None:
    waits = SERVICES["holdfast"]["depends_on"]

    assert {part: waits[part]["condition"] for part in waits} == {
        "postgres": "service_healthy",
        "s3": "service_healthy",
    }


@every_service
def test_ports_are_published_on_loopback_only(name: str) -> None:
    ports = SERVICES[name].get("ports", [])

    assert all(port.startswith("127.0.0.1:") for port in ports), ports


@every_service
def test_secrets_are_required_from_the_environment(name: str) -> None:
    env = SERVICES[name].get("environment", {})
    if SERVICES[name].get("profiles"):  # A required variable would be required without it, too.
        files = {f"/run/secrets/{secret}" for secret in SERVICES[name]["secrets"]}
        env = {key: value for key, value in env.items() if value not in files}
        assert set(SERVICES[name]["secrets"]) <= set(COMPOSE["secrets"])
        assert not [key for key in env if re.search(r"PASSWORD|SECRET|TOKEN", key)]
        return
    secret = {
        key for key in env if re.search(r"PASSWORD|SECRET|ACCESS_KEY|TOKEN|DATABASE_URL", key)
    }

    assert bool(secret) is (name != "skypilot"), "users add the keys of their clouds"
    for key in secret:
        # `:?` refuses to start without a value; a default would be a publicly known password.
        assert re.search(r"\$\{[A-Z0-9_]+:\?[^}]+\}", env[key]), key
    assert not re.search(r"\$\{[A-Z0-9_]*(PASSWORD|SECRET|KEY)[A-Z0-9_]*(:?-|\})", str(env))


def test_service_environment_uses_only_known_settings() -> None:
    known = {f"HOLDFAST_{field.upper()}" for field in Settings.model_fields}
    known |= {f"HOLDFAST_LOCAL_{field.upper()}" for field in SimulatedMarketSettings.model_fields}

    environment = {
        key for key in SERVICES["holdfast"]["environment"] if key.startswith("HOLDFAST_")
    }

    assert environment <= known
    assert {"HOLDFAST_HOME", "HOLDFAST_DATABASE_URL"} <= environment


def test_users_have_no_access_to_the_host_of_the_installation() -> None:
    """Local jobs could read the key of the S3 server's administrator."""
    environment = SERVICES["holdfast"]["environment"]
    member_settings = (
        "LOCAL_MEMBERS",
        "SLURM_MEMBERS",
        "FOLDERS",
        "TRUST_LOOPBACK",
        "STORE_PROFILES",
    )

    assert not {f"HOLDFAST_{name}" for name in member_settings} & environment.keys()
    assert not any(Settings.model_fields[name.lower()].default for name in member_settings)


def mounts(name: str) -> dict[str, tuple[str, str]]:
    """The volumes of a service: source and mode by path."""
    parts = [(*text.split(":"), "rw")[:3] for text in SERVICES[name]["volumes"]]
    return {volume: (path, mode) for volume, path, mode in parts}


def test_skypilot_container_mounts_only_the_given_paths() -> None:
    service, skypilot = mounts("holdfast"), mounts("skypilot")
    home = Path(SERVICES["holdfast"]["environment"]["HOLDFAST_HOME"])
    settings = Settings(home=home)

    assert SERVICES["holdfast"]["environment"]["HOLDFAST_SKYPILOT_SHARES_FILES"] == "true"
    assert set(skypilot) == {"skypilot", "launches", "wheels"}, "`home` has the service's secret"
    assert all(service[volume][0] == path for volume, (path, _) in skypilot.items())
    assert skypilot["skypilot"] == (str(settings.skypilot_folder), "rw")
    assert skypilot["launches"] == (str(home / "skypilot-launches"), "ro")
    assert skypilot["wheels"] == (str(home / "wheels"), "ro")
    assert SERVICES["skypilot"]["user"] == SERVICES["holdfast"]["user"]


def test_shared_directories_are_created_in_both_images() -> None:
    """A volume takes its owner from the first started image; otherwise root would own it."""
    made = [
        rest for word, rest in instructions() if word == "RUN" and "install --directory" in rest
    ]

    assert len(made) == 2
    for path, _ in mounts("skypilot").values():
        assert all(path in rest.split() for rest in made), path


def test_skypilot_and_the_service_have_matching_urls() -> None:
    env = SERVICES["holdfast"]["environment"]
    stage = stages()["skypilot"]
    waits = SERVICES["skypilot"]["depends_on"]

    assert SERVICES["skypilot"]["build"] == {"context": ".", "target": "skypilot"}
    assert SERVICES["skypilot"]["image"] == f"holdfast-skypilot:{VERSION_OF_SKYPILOT}-{VERSION}"
    assert env["HOLDFAST_SKYPILOT_URL"] == "http://skypilot:46580"
    assert env["HOLDFAST_SKYPILOT_CALLBACK_URL"] == f"http://holdfast:{DEFAULT_PORT}"
    assert SERVICES["holdfast"]["command"][0] == "up", "which writes SkyPilot's configuration"
    assert waits == {"holdfast": {"condition": "service_healthy"}}
    assert ("CMD", '["--host=0.0.0.0", "--port=46580"]') in stage
    assert "ports" not in SERVICES["skypilot"], "every client of it can rent nodes"


def test_skypilot_image_matches_the_server_of_holdfast_up() -> None:
    stage = stages()["skypilot"]
    (env,) = [rest for word, rest in stage if word == "ENV"]
    given = dict(pair.split("=", 1) for pair in env.split())
    here = server_environment(
        Path("/var/lib/holdfast/skypilot"), 46580, Path("/skypilot/bin/python")
    )

    assert ("ENTRYPOINT", f'["python", "-m", "{MODULE}"]') in stage
    for name in ("HOME", "TZ", "IS_SKYPILOT_SERVER", "SKYPILOT_DISABLE_USAGE_COLLECTION"):
        assert given[name] == here[name]
    assert f"skypilot=={VERSION_OF_SKYPILOT}" in (ROOT / "requirements-skypilot.lock").read_text()
    # `-m` searches the working directory first.
    assert ("WORKDIR", given["HOME"]) in stage


def test_skypilot_image_contains_the_admission_plugin() -> None:
    """An image of an older Holdfast must fail: without the plugin, SkyPilot launches nothing."""
    stage = stages()["skypilot"]
    (_, copied) = next(item for item in stage if item[0] == "COPY" and SOURCE.name in item[1])
    mode, source, folder = copied.split()
    environments = [rest for word, rest in stage if word == "RUN" and "-m venv" in rest]

    assert SERVICES["holdfast"]["environment"]["HOLDFAST_SKYPILOT_HAS_GATE"] == "true"
    assert mode == "--chmod=0644", "the server is not root, and the file may be of a careful umask"
    assert (ROOT / source).samefile(SOURCE)
    assert "-m venv /skypilot " in environments[0]
    assert folder == "/skypilot/lib/python3.11/site-packages/"
    assert stage[0][1] == "${PYTHON_IMAGE} AS skypilot"


def test_services_agree_on_names_ports_and_keys() -> None:
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


def test_image_is_based_on_one_pinned_slim_python() -> None:
    bases = [rest for word, rest in instructions() if word == "FROM"]

    assert len(bases) == 3, "one stage builds the wheel, one is SkyPilot's, the last runs the wheel"
    assert bases[-1] == "${PYTHON_IMAGE}", "what is built without a target is the service"
    assert {base.partition(" ")[0] for base in bases} == {"${PYTHON_IMAGE}"}
    word, base = instructions()[0]
    assert word == "ARG"
    assert re.fullmatch(
        rf"PYTHON_IMAGE=docker.io/library/python:3\.11\.\d+-slim-[a-z]+{DIGEST}", base
    )


def test_images_of_other_projects_have_versions_and_digests() -> None:
    """The images of this project are built from this checkout."""
    exact = re.compile(rf"[\w./-]+:v?\d+\.\d+[\w.-]*{DIGEST}")
    named = [service["image"] for service in SERVICES.values() if "build" not in service]
    images = [*named, *re.findall(r"^ARG \w+_IMAGE=(\S+)", DOCKERFILE, re.MULTILINE)]

    assert len(images) == 5
    assert [image for image in images if not exact.fullmatch(image)] == []


def test_images_describe_themselves() -> None:
    for name in ("skypilot", ""):
        labels = " ".join(rest for word, rest in stages()[name] if word == "LABEL")
        assert PYPROJECT["project"]["license"] in labels
        for key in ("title", "description", "licenses"):
            assert f'org.opencontainers.image.{key}="' in labels
    assert PYPROJECT["project"]["description"] in labels


def test_image_contains_a_bill_of_its_packages() -> None:
    (made,) = [rest for word, rest in stages()["build"] if "cyclonedx-py environment" in rest]

    assert "--output-file /app/sbom.cdx.json /app/bin/python" in made
    assert ("COPY", "--from=build /app /app") in stages()[""]


def test_image_installs_only_pinned_packages_and_adds_no_urls() -> None:
    assert not [word for word, _ in instructions() if word == "ADD"]
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert len(installs) == 5
    for rest in installs:
        assert re.search(r"--constraint requirements\.lock|--requirement /?[\w-]+\.lock", rest)
        assert "--no-cache-dir" in rest


def test_image_runs_unprivileged_with_a_health_check() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]

    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)
    assert ("ENTRYPOINT", '["holdfast"]') in stages()[""]
    assert ("CMD", '["serve", "--host", "0.0.0.0"]') in instructions()
    assert ("EXPOSE", str(DEFAULT_PORT)) in instructions()


def test_image_has_torch_only_on_request() -> None:
    assert ("ARG", "EXTRAS=service,postgres") in instructions()


def test_build_context_has_exactly_the_inputs_of_the_wheel() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    ignored, *given = [line for line in lines if line and not line.startswith("#")]
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"LICENSE", "NOTICE", "README.md", "pyproject.toml", "requirements.lock"}
    needed |= {path.partition("/")[0] for path in wheel["packages"]} | set(wheel["force-include"])
    needed |= {
        "dashboard",
        "hatch_build.py",
    }  # The dashboard is built first, and hatch_build.py requires it.
    needed -= {"docs/reference"}
    needed |= {"docs", "mkdocs.yml", "requirements-docs.lock", "CHANGELOG.md", "CONTRIBUTING.md"}
    needed |= {"release/tools.lock"}  # of the bill of materials

    assert ignored == "*"
    assert {line[1:] for line in given if line.startswith("!")} == needed
