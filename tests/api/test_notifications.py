"""Notification channels: their management, and the messages to receivers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from holdfast.background.notifier import Notifier
from holdfast.cli.app import app
from holdfast.errors import BadRequest, NotDelivered
from holdfast.store.tables.base import metadata
from support.simulated_service import JOB_FILE, SimulatedService, at_a_port
from typer.testing import CliRunner, Result
from worker.support.run_driver import wait_until

BASE = "/v1/projects/default/channels"


class Receiver:
    """The web server of a receiver."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append((headers, json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hush?key=hush"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    it = Receiver()
    thread = threading.Thread(target=it.server.serve_forever, args=(0.02,))
    thread.start()
    yield it
    it.server.shutdown()
    thread.join()
    it.server.server_close()


def notify(world: SimulatedService) -> None:
    """Run the notifier once."""
    services = world.services
    Notifier(
        outbox=services.outbox,
        channels=services.channels,
        messenger=services.messenger,
        clock=services.clock,
    ).run_once_and_wait()


def add(world: SimulatedService, url: str, **fields: Any) -> dict[str, Any]:
    answer = world.http.post(BASE, json={"name": "ops", "url": url, **fields})
    assert answer.status_code == 201, answer.text
    channel: dict[str, Any] = answer.json()
    return channel


def test_webhook_receives_notifications_of_a_job(
    world: SimulatedService, receiver: Receiver
) -> None:
    add(world, receiver.url)
    job_id = world.submit()["id"]
    world.until(job_id, "succeeded")

    notify(world)

    found = [item for _, body in receiver.got for item in body["data"]["news"]]
    assert [(item["kind"], item["job_id"]) for item in found] == [("succeeded", job_id)]
    assert found[0]["text"] == f"tiny ({job_id}) succeeded"


def test_test_message_is_sent_once_and_its_delivery_shown(
    world: SimulatedService, receiver: Receiver
) -> None:
    add(world, receiver.url, kinds=["failed"], per_hour=1)

    sent = world.http.post(f"{BASE}/ops/test")
    notify(world)
    after = world.http.get(f"{BASE}/ops/deliveries/{sent.json()['id']}").json()

    [(headers, body)] = receiver.got
    assert (sent.status_code, sent.json()["progress"]) == (202, "waiting")
    assert headers["webhook-id"] == after["id"]
    assert body["data"]["news"][0]["kind"] == "test"
    assert (after["progress"], after["tries"], after["trouble"]) == ("sent", 1, None)
    assert world.http.get(f"{BASE}/ops/deliveries").json() == {"deliveries": [after], "next": None}


def test_failed_test_message_is_not_retried(world: SimulatedService, receiver: Receiver) -> None:
    add(world, receiver.url.replace("127.0.0.1", "localhost.invalid"))
    world.http.post(f"{BASE}/ops/test")

    notify(world)

    [delivery] = world.http.get(f"{BASE}/ops/deliveries").json()["deliveries"]
    assert delivery["progress"] == "dead"
    assert delivery["trouble"].startswith("localhost.invalid has no address")


def test_channel_url_is_never_returned(world: SimulatedService, receiver: Receiver) -> None:
    made = add(world, receiver.url)
    rotated = world.http.post(f"{BASE}/ops/rotate").json()

    listed = world.http.get(BASE)
    audited = world.http.get("/v1/audit")

    assert made["shown"] == receiver.url.partition("/hush")[0]
    assert made["secret"].startswith("whsec_")
    assert rotated["secret"] not in {None, made["secret"]}
    assert listed.json() == [{key: rotated[key] for key in rotated if key != "secret"}]
    assert "hush" not in listed.text + audited.text
    assert "whsec" not in listed.text + audited.text


def test_channel_changes_are_in_the_audit_log(world: SimulatedService, receiver: Receiver) -> None:
    add(world, receiver.url)
    world.http.post(f"{BASE}/ops/test")
    world.http.post(f"{BASE}/ops/rotate")
    world.http.delete(f"{BASE}/ops")

    rows = world.http.get("/v1/audit?target=default/ops").json()["rows"]

    assert [row["action"] for row in rows] == [
        "channel.remove",
        "channel.rotate",
        "channel.test",
        "channel.add",
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"url": "https://10.0.0.1/"}, "is not public"),
        ({"url": "https://169.254.169.254/"}, "hands out cloud credentials"),
        ({"url": "json://example.com"}, "the scheme 'json' is not supported"),
        ({"url": "mailto:ada@example.com"}, "HOLDFAST_SMTP_URL"),
        ({"url": "https://e.example/", "kinds": ["explosion"]}, "#/kinds/0"),
        ({"url": "https://e.example/", "per_hour": 0}, "per_hour"),
        ({"url": "https://e.example/", "name": "no spaces"}, "name"),
    ],
)
def test_invalid_channel_is_refused_with_a_reason(
    world: SimulatedService, body: dict[str, Any], message: str
) -> None:
    answer = world.http.post(BASE, json={"name": "ops", **body})

    assert answer.status_code == 422
    assert message in answer.text


def test_refusal_does_not_contain_the_url(world: SimulatedService) -> None:
    answer = world.http.post(BASE, json={"name": "ops", "url": f"https://10.0.0.1/{'hush' * 600}"})

    assert answer.status_code == 422
    assert "hush" not in answer.text


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/v1/projects/vision/channels"),
        ("POST", f"{BASE}/nobody/test"),
        ("POST", f"{BASE}/nobody/rotate"),
        ("DELETE", f"{BASE}/nobody"),
        ("GET", f"{BASE}/nobody/deliveries"),
        ("GET", f"{BASE}/nobody/deliveries/msg_1"),
    ],
)
def test_unknown_channels_and_projects_are_not_found(
    world: SimulatedService, verb: str, path: str
) -> None:
    assert world.http.request(verb, path).status_code == 404


def test_channel_names_are_unique_in_a_project(world: SimulatedService, receiver: Receiver) -> None:
    add(world, receiver.url)

    again = world.http.post(BASE, json={"name": "ops", "url": receiver.url})

    assert again.status_code == 409


def with_notify(*urls: str) -> str:
    return f"{JOB_FILE}  notify: {json.dumps(urls)}\n"


def test_job_file_may_name_notification_targets(
    world: SimulatedService, receiver: Receiver
) -> None:
    result = world.submit(with_notify(receiver.url))["id"]
    other = world.submit()["id"]
    world.until(result, "succeeded")
    world.until(other, "succeeded")

    notify(world)

    found = {item["job_id"] for _, body in receiver.got for item in body["data"]["news"]}
    assert found == {result}
    assert world.http.get(BASE).json() == []


def test_deliveries_to_job_file_targets_are_listed(
    world: SimulatedService, receiver: Receiver
) -> None:
    job_id = world.submit(with_notify(receiver.url, "https://nowhere.invalid/hush"))["id"]
    world.until(job_id, "succeeded")
    notify(world)

    path = f"/v1/jobs/{job_id}/deliveries"
    pages = [world.http.get(path, params={"limit": 1})]
    while cursor := pages[-1].json()["next"]:
        pages.append(world.http.get(path, params={"limit": 1, "cursor": cursor}))

    body = {each["channel"]: each for page in pages for each in page.json()["deliveries"]}
    assert (body["notify-1"]["progress"], body["notify-1"]["tries"]) == ("sent", 1)
    assert body["notify-2"]["progress"] == "waiting"
    assert body["notify-2"]["trouble"].startswith("nowhere.invalid has no address")
    assert "hush" not in "".join(page.text for page in pages)
    assert world.http.get(f"/v1/jobs/{world.submit()['id']}/deliveries").json()["deliveries"] == []
    assert world.http.get("/v1/jobs/nobody/deliveries").status_code == 404


def test_job_file_url_is_neither_stored_nor_shown(
    world: SimulatedService, receiver: Receiver
) -> None:
    job_id = world.submit(with_notify(receiver.url))["id"]
    with world.services.engine.connect() as connection:
        stored = [str(connection.execute(table.select()).all()) for table in metadata.sorted_tables]
    shown = [
        world.http.get(path).text
        for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/events", "/v1/audit")
    ]
    rendered = world.http.post("/v1/render", json={"task": with_notify(receiver.url)}).text
    clone = world.http.post(f"/v1/jobs/{job_id}/clone", json={})

    assert clone.status_code == 201
    assert not [text for text in (*stored, *shown, rendered, clone.text) if "hush" in text]


@pytest.mark.parametrize(
    ("urls", "pointer"),
    [
        (["https://example.com/", "https://10.0.0.1/hush"], "#/holdfast/notify/1"),
        (["ftp://hush"], "#/holdfast/notify/0"),
        (["https://example.com/hush"] * 11, "#/holdfast/notify"),
    ],
)
def test_invalid_target_is_a_job_file_error(
    world: SimulatedService, urls: list[str], pointer: str
) -> None:
    submitted = world.http.post("/v1/jobs", json={"task": with_notify(*urls)})
    rendered = world.http.post("/v1/render", json={"task": with_notify(*urls)})

    for answer in (submitted, rendered):
        assert answer.status_code == 422
        assert [flaw["pointer"] for flaw in answer.json()["errors"]] == [pointer]
        assert "hush" not in answer.text
    assert world.http.get("/v1/jobs").json()["jobs"] == []


@pytest.fixture
def at_terminal(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line that is configured for the service, with the notifier running all the time."""
    over = threading.Event()

    def run_notifier() -> None:
        while not over.wait(0.05):
            notify(world)

    notifier = threading.Thread(target=run_notifier)
    with at_a_port(world.app) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        notifier.start()
        yield CliRunner()
        over.set()
        notifier.join()


def test_command_line_manages_channels(at_terminal: CliRunner, receiver: Receiver) -> None:
    def invoke(*arguments: str, **more: Any) -> Result:
        return at_terminal.invoke(app, ["channels", *arguments], **more)

    made = invoke("add", "ops", "-", "--kind", "failed", "--json", input=f"{receiver.url}\n")
    tried = invoke("test", "ops", "--json")
    sent = invoke("deliveries", "ops", "--json")
    listed = invoke("list")
    rotated = invoke("rotate", "ops", "--json")
    removed = invoke("rm", "ops")

    assert json.loads(made.stdout)["secret"].startswith("whsec_")
    assert json.loads(tried.stdout)["progress"] == "sent"
    assert [item["id"] for item in json.loads(sent.stdout)] == [json.loads(tried.stdout)["id"]]
    assert "ops" in listed.stdout
    assert "failed" in listed.stdout
    assert "hush" not in made.output + listed.output + rotated.output
    assert json.loads(rotated.stdout)["secret"] != json.loads(made.stdout)["secret"]
    assert removed.exit_code == 0
    assert invoke("list", "--json").stdout.strip() == "[]"


def test_command_line_lists_deliveries_of_a_job(
    world: SimulatedService, at_terminal: CliRunner, receiver: Receiver
) -> None:
    job_id = world.submit(with_notify(receiver.url))["id"]
    world.until(job_id, "succeeded")
    deliveries = f"/v1/jobs/{job_id}/deliveries"
    # The thread of the fixture sends it.
    wait_until(
        lambda: (
            [each["progress"] for each in world.http.get(deliveries).json()["deliveries"]]
            == ["sent"]
        )
    )

    listed = at_terminal.invoke(app, ["channels", "deliveries", "--job", job_id])
    neither = at_terminal.invoke(app, ["channels", "deliveries"])

    assert re.search(r"msg_\w+ .* http://127\.0\.0\.1.* sent ", listed.stdout)
    assert "name either a channel or a job with --job" in str(neither.exception)


def test_failed_test_message_prints_one_sentence(at_terminal: CliRunner) -> None:
    at_terminal.invoke(app, ["channels", "add", "ops", "https://nowhere.invalid/"])

    failed = at_terminal.invoke(app, ["channels", "test", "ops"])
    wrong = at_terminal.invoke(app, ["channels", "add", "o ps", "https://nowhere.invalid/hush"])

    assert isinstance(failed.exception, NotDelivered)
    assert failed.exception.detail.startswith("nowhere.invalid has no address")
    assert isinstance(wrong.exception, BadRequest)
    assert "hush" not in wrong.exception.detail
