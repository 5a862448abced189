"""Users at the command line of a real service: roles, audit log, and no leaked secret."""

from __future__ import annotations

import json
import re
from typing import Any

import psutil
from support.live_service import Service

TOKEN = re.compile(r"hf_[0-9a-f]{12}_[A-Za-z0-9_-]{40,}")


class User:
    """A user with a separate login on another account of this machine."""

    def __init__(self, service: Service, name: str, token: str) -> None:
        self.service = service
        self.config = service.folder / name
        self.token = token
        # The owner's token is in a home that other users cannot read.
        self.environment = {"HOLDFAST_CONFIG_HOME": str(self.config), "HOLDFAST_HOME": "/nowhere"}
        self.login = self.cli("login", "--token", token)

    def cli(self, *arguments: str) -> Any:
        return self.service.cli(*arguments, **self.environment)

    def json(self, *arguments: str) -> Any:
        answer = self.cli(*arguments, "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)


def make_token(maker: Any, *arguments: str) -> str:
    """Create a token, and return it as printed."""
    answer = maker.cli("tokens", "add", *arguments)
    assert answer.returncode == 0, answer.stderr
    token: str = answer.stdout.strip()
    assert TOKEN.fullmatch(token)
    return token


def test_users_act_by_role_and_are_audited(service: Service) -> None:
    assert service.cli("users", "add", "ada", "--admin").returncode == 0
    scopes = ("--scope", "read", "--scope", "write", "--scope", "admin")
    ada = User(service, "ada", make_token(service, "laptop", "--user", "ada", *scopes))
    assert "as ada, an admin" in ada.login.stdout
    for arguments in (
        ("projects", "add", "nlp"),
        ("users", "add", "bob"),
        ("members", "set", "nlp", "bob", "member"),
        ("users", "add", "eve"),
    ):
        assert ada.cli(*arguments).returncode == 0, arguments
    bob = User(service, "bob", make_token(ada, "laptop", "--user", "bob", *scopes))
    eve = User(service, "eve", make_token(ada, "laptop", "--user", "eve"))

    (service.folder / "job.yaml").write_text("run: sleep 600\nresources: {infra: local}")
    refused = bob.cli("submit", "job.yaml")
    job = ada.json("submit", "job.yaml", "--project", "nlp")

    assert refused.returncode == 5
    assert "HOLDFAST_LOCAL_MEMBERS" in refused.stderr
    assert (job["project"], job["owner"]) == ("nlp", "ada")
    assert eve.cli("show", job["id"]).returncode == 4
    assert eve.json("ps") == []
    assert [item["id"] for item in bob.json("ps", "--project", "nlp")] == [job["id"]]
    assert bob.cli("users", "list").returncode == 5
    assert bob.cli("projects", "use", "vision").returncode == 4
    assert bob.cli("projects", "use", "nlp").returncode == 0
    assert bob.json("whoami")["roles"] == {"nlp": "member"}
    assert bob.cli("cancel", job["id"]).returncode == 0
    assert service.cli("show", job["id"]).returncode == 0, "the owner's client has a token"

    mine = bob.json("tokens", "list")[0]["id"]
    rotated = bob.json("tokens", "rotate", mine)
    assert ada.cli("users", "disable", "bob").returncode == 0
    assert bob.cli("ps").returncode == 5
    assert service.cli("ps", HOLDFAST_TOKEN=rotated["token"]).returncode == 5
    anonymous = service.cli("ps", HOLDFAST_HOME="/nowhere")
    assert anonymous.returncode == 5
    assert "holdfast login" in anonymous.stderr

    rows = ada.json("audit", "--actor", "bob")
    assert [row["action"] for row in rows] == ["token.rotate", "job.cancel"]
    decision = ada.cli("audit", "verify")
    assert decision.returncode == 0, decision.stdout
    head = decision.stdout.split("--head ")[1].strip()
    assert ada.json("audit", "verify", "--head", head)["sound"]
    assert ada.cli("audit", "verify", "--head", f"9999:{'0' * 64}").returncode == 1
    assert ada.cli("logout").returncode == 0
    assert (ada.config / "login.json").stat().st_mode & 0o777 == 0o600
    assert ada.token not in (ada.config / "login.json").read_text()

    service.ended(job["id"])
    _check_secrets_are_absent([ada.token, bob.token, eve.token, rotated["token"]], service)


def test_invalid_input_is_rejected_with_a_clear_message(service: Service) -> None:
    cases = [
        (("login", "--token", "hunter2"), 2, "begins with hf_"),
        (("login", "--token", "hf_a_b"), 5, "is not accepted"),
        (("users", "add", "Ada"), 2, "name"),
        (("users", "disable", "nobody"), 4, "no user nobody"),
        (("members", "set", "default", "nobody", "member"), 4, "no user nobody"),
        (("members", "set", "default", "nobody", "king"), 2, "role"),
        (("tokens", "add", "x", "--scope", "root"), 2, "scopes"),
        (("tokens", "revoke", "000000000000"), 4, "no token"),
        (("tokens", "revoke", "../jobs"), 4, "there is no resource at"),
        (("projects", "use", "nowhere"), 4, "your projects: default"),
    ]

    for arguments, code, message in cases:
        answer = service.cli(*arguments, HOLDFAST_CONFIG_HOME=str(service.folder / "config"))
        assert answer.returncode == code, (arguments, answer.stderr)
        assert message in answer.stderr, (arguments, answer.stderr)
        assert "Traceback" not in answer.stderr


def test_restart_replaces_a_revoked_owner_token(service: Service) -> None:
    file = service.home / "token"
    old = file.read_text()
    service.cli("users", "add", "ada")
    (listed,) = service.json("tokens", "list")
    service.cli("tokens", "revoke", listed["id"])
    locked_out = service.cli("ps").returncode

    service.end(15)
    service.start()

    assert locked_out == 5
    assert file.read_text() != old
    assert file.stat().st_mode & 0o777 == 0o600
    assert service.cli("ps").returncode == 0


def _check_secrets_are_absent(tokens: list[str], service: Service) -> None:
    """Check that no token's secret is in a file of the service or a command line of a process."""
    canaries = [token.split("_", 2)[2].encode() for token in tokens]
    files = [path for path in service.home.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"holdfast.db", "secret", "audit-head"} <= names
    for path in [*files, service.folder / "service.log"]:
        content = path.read_bytes()
        assert not any(canary in content for canary in canaries), path
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline()).encode()
        except psutil.Error:
            continue
        assert not any(canary in line for canary in canaries), process.pid
