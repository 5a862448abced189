"""Hostile job files that access resources of others, drawn from a seed for each launcher."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

LAUNCHERS: Final = ("local", "slurm", "aws", "kubernetes")
"""Values of `infra`; SkyPilot runs the last two."""
TAGGED: Final = (
    "!!python/object/apply:os.system [id]",
    "!!python/name:os.system",
    "!include /etc/passwd",
    "!!binary L2V0Yy9wYXNzd2Q=",
)
NAMES: Final = (
    "../../x",
    "$(id)",
    "a\nb",
    "`id`",
    "-rf",
    "x" * 200,
    "; rm -rf ~",
    "\u202egnp",
    "''",
)
ENDPOINTS: Final = (
    "http://127.0.0.1:9000", "https://127.0.0.1", "https://localhost:8642", "https://[::1]", "https://[::ffff:127.0.0.1]",
    "http://169.254.169.254", "https://169.254.169.254", "https://2130706433", "https://0x7f000001", "https://127.1",
    "https://10.0.0.1", "https://user:pw@127.0.0.1", "https://127.0.0.1#@s3.amazonaws.com", "https://0.0.0.0",
    "http://8.8.8.8", "file:///etc/passwd", "unix:///run/docker.sock", "https://[fd00:ec2::254]", "https://8.8.8.8/path",
)  # fmt: skip
STEERING: Final = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PATH", "HISTFILE", "HISTFILESIZE", "BASH_ENV", "ENV", "PYTHONPATH",
    "PYTHONSTARTUP", "PROMPT_COMMAND", "CURL_HOME", "https_proxy", "GIT_SSH_COMMAND", "AWS_CONFIG_FILE", "SKYPILOT_USER_ID",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "HOLDFAST_NUDGE", "HOLDFAST_ADMISSION", "HOLDFAST_HOME",
    "HOLDFAST_TOKEN", "HOLDFAST_SPOOL", "HOLDFAST_RUN_DIR", "HOLDFAST_LAUNCH", "HOLDFAST_PYTHON", "OFFLINE_ROOT", "A B", "X%%", "",
)  # fmt: skip
CONFIGS: Final[tuple[dict[str, Any], ...]] = (
    {"event_callback": "cat ~/.aws/credentials"},
    {"api_server_access": True},
    {"config": {"kubernetes": {"pod_config": {"spec": {"hostPID": True}}}}},
    {"config": {"active_workspace": "theirs"}},
    {"config": {"aws": {"remote_identity": "LOCAL_CREDENTIALS"}}},
    {"config": {"hooks": {"pre": "id"}}},
    {"config": {"slurm": {"sbatch_options": {"output": "/root/.bashrc"}}}},
    {"config": {"slurm": {"sbatch_options": {"uid": "0", "export": "ALL"}}}},
    {"config": {"slurm": {"sbatch_options": {"comment": "holdfast:/shared", "wrap": "id"}}}},
    {"config": {"slurm": {"sbatch_options": {"constraint": "a --uid=0"}}}},
    {"service": {"replicas": 2}},
    {"pool": {"workers": 2}},
    {"volumes": {"/host": {"host_path": "/", "mode": "rw"}}},
)
RESOURCES: Final[tuple[dict[str, Any], ...]] = (
    {"cloud": "slurm"},
    {"any_of": [{"infra": "slurm/c/p"}, {"infra": "aws"}]},
    {"ordered": [{"infra": "local"}]},
    {"infra": "/slurm/c"},
    {"infra": " local"},
    {"infra": "LOCAL/../x"},
    {"_cluster_config_overrides": {"kubernetes": {"pod_config": {}}}},
    {"any_of": [{"infra": "aws", "_docker_login_config": {"username": "x"}}]},
    {"infra": "ssh/pool", "labels": {"a": "$(id)"}},
)
IMAGES: Final[tuple[Any, ...]] = (
    "docker:evil", "docker:../../x", "docker:127.0.0.1:5000/x", {"us-east-1": "docker:x"}, "file:///etc/passwd", ["x"],
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """The resources that the hostile member tries to access."""

    paths: tuple[str, ...]
    """Spellings of paths that belong to others."""
    code: str
    """A folder of the member, with links that leave it."""


def hostile(target: Target, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield category, launcher and text of job files endlessly; each category for each launcher."""
    draw = random.Random(seed)
    for (category, make), infra in itertools.cycle(
        itertools.product(CATEGORIES.items(), LAUNCHERS)
    ):
        task: dict[str, Any] = {"name": "job", "run": "cat secret", "resources": {"infra": infra}}
        words = make(draw, target)
        task |= words | {"resources": task["resources"] | words.get("resources", {})}
        text = yaml.safe_dump(task)
        if category == "tags":
            text = text.replace("cat secret", draw.choice(TAGGED))
        yield category, infra, text


def _paths(draw: random.Random, target: Target) -> dict[str, Any]:
    return {"workdir": draw.choice(target.paths)}


def _links(draw: random.Random, target: Target) -> dict[str, Any]:
    return {"workdir": target.code + draw.choice(["", "/", "/.", "//"])}


def _mounts(draw: random.Random, target: Target) -> dict[str, Any]:
    path = draw.choice(target.paths)
    filled = {"name": "b$S", "store": "s3"}
    mount = draw.choice(
        [path, {"source": path}, {"name": "b", "source": [target.code, path]}, filled]
    )
    secret = {"secrets": {"S": f'", "source": "{path}'}} if mount is filled else {}
    return {"file_mounts": {draw.choice(["/data", "~/.ssh", "/$X"]): mount}, **secret}


def _envs(draw: random.Random, target: Target) -> dict[str, Any]:
    value = draw.choice([*target.paths, "$(id)", "0", f"{target.code}/evil.so"])
    return {draw.choice(["envs", "secrets"]): {draw.choice(STEERING): value}}


def _stores(draw: random.Random, target: Target) -> dict[str, Any]:
    path = draw.choice(target.paths)
    store = draw.choice([
        f"file://{path}", f"file://{path}".replace("home", "%68ome"), f"file://localhost{path}", f"FILE://{path}",
        "s3://user:pw@bucket/x", "s3://bucket/x?versionId=1", "s3://bucket/%0a", f"s3://{path}", "s3:///x", f"gs:/{path}",
    ])  # fmt: skip
    return {"holdfast": {"checkpoint": {"store": store}}}


def _endpoints(draw: random.Random, target: Target) -> dict[str, Any]:
    name = draw.choice(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
    keys = draw.choice([{}, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}])
    store = {"checkpoint": {"store": "s3://bucket/prefix"}}
    return {"envs": {name: draw.choice(ENDPOINTS), **keys}, "holdfast": store}


def _profiles(draw: random.Random, target: Target) -> dict[str, Any]:
    profile = draw.choice(["default", "", "admin", "../../root", "$(id)"])
    return {"envs": {"AWS_PROFILE": profile, "AWS_DEFAULT_PROFILE": profile}}


def _images(draw: random.Random, target: Target) -> dict[str, Any]:
    run = {"docker": {"run_options": ["--privileged", f"-v={draw.choice(target.paths)}:/x"]}}
    login = {f"SKYPILOT_DOCKER_{name}": "x" for name in ("USERNAME", "PASSWORD", "SERVER")}
    return {"resources": {"image_id": draw.choice(IMAGES)}, "config": run, "envs": login}


def _names(draw: random.Random, target: Target) -> dict[str, Any]:
    name = draw.choice([*NAMES, *target.paths])
    return {
        "name": name,
        "holdfast": {"tags": {name[:50]: name}},
        "num_nodes": draw.choice([1, 65, 1000]),
    }


def _config(draw: random.Random, target: Target) -> dict[str, Any]:
    return draw.choice(CONFIGS)


def _resources(draw: random.Random, target: Target) -> dict[str, Any]:
    return {"resources": draw.choice(RESOURCES)}


def _tags(draw: random.Random, target: Target) -> dict[str, Any]:
    return {}


CATEGORIES: Final[dict[str, Callable[[random.Random, Target], dict[str, Any]]]] = {
    "paths": _paths,
    "links": _links,
    "mounts": _mounts,
    "envs": _envs,
    "stores": _stores,
    "endpoints": _endpoints,
    "profiles": _profiles,
    "images": _images,
    "names": _names,
    "config": _config,
    "resources": _resources,
    "tags": _tags,
}
