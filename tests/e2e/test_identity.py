"""People at the command line of a real service: from the owner's first admin to who did what, and no secret anywhere."""

from __future__ import annotations

import json
import re
from typing import Any

import psutil
from support.live_service import Service

TOKEN = re.compile(r"hf_[0-9a-f]{12}_[A-Za-z0-9_-]{40,}")


class Person:
    """Somebody with a login of their own, on another account of this machine."""

    def __init__(self, service: Service, name: str, token: str) -> None:
        self.service = service
        self.config = service.folder / name
        self.token = token
        # The owner's token is in a home that they cannot read.
        self.environment = {"HOLDFAST_CONFIG_HOME": str(self.config), "HOLDFAST_HOME": "/nowhere"}
        self.login = self.cli("login", "--token", token)

    def cli(self, *words: str) -> Any:
        return self.service.cli(*words, **self.environment)

    def json(self, *words: str) -> Any:
        answer = self.cli(*words, "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)


def make_token(maker: Any, *words: str) -> str:
    """A new token, as it is printed."""
    answer = maker.cli("tokens", "add", *words)
    assert answer.returncode == 0, answer.stderr
    token: str = answer.stdout.strip()
    assert TOKEN.fullmatch(token)
    return token


def test_from_the_first_admin_to_who_did_what(service: Service) -> None:
    assert service.cli("users", "add", "ada", "--admin").returncode == 0
    scopes = ("--scope", "read", "--scope", "write", "--scope", "admin")
    ada = Person(service, "ada", make_token(service, "laptop", "--user", "ada", *scopes))
    assert "as ada, an admin" in ada.login.stdout
    for words in (
        ("projects", "add", "nlp"),
        ("users", "add", "bob"),
        ("members", "set", "nlp", "bob", "member"),
        ("users", "add", "eve"),
    ):
        assert ada.cli(*words).returncode == 0, words
    bob = Person(service, "bob", make_token(ada, "laptop", "--user", "bob", *scopes))
    eve = Person(service, "eve", make_token(ada, "laptop", "--user", "eve"))

    (service.folder / "job.yaml").write_text("run: sleep 60\nresources: {infra: local}")
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
    nobody = service.cli("ps", HOLDFAST_HOME="/nowhere")
    assert nobody.returncode == 5
    assert "holdfast login" in nobody.stderr

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
    _is_nowhere([ada.token, bob.token, eve.token, rotated["token"]], service)


def test_invalid_input_is_rejected_with_a_clear_message(service: Service) -> None:
    mistakes = [
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

    for words, code, sentence in mistakes:
        answer = service.cli(*words, HOLDFAST_CONFIG_HOME=str(service.folder / "config"))
        assert answer.returncode == code, (words, answer.stderr)
        assert sentence in answer.stderr, (words, answer.stderr)
        assert "Traceback" not in answer.stderr


def test_an_owner_who_lost_their_token_starts_the_service_again(service: Service) -> None:
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


def _is_nowhere(tokens: list[str], service: Service) -> None:
    """That the secret of no token is in any file of the service, nor in the command line of any process."""
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
