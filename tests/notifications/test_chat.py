"""Messages to chat services, compared with what apprise would have sent."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import responses
from holdfast.domain.notifications.channels import Message, payload
from holdfast.domain.notifications.events import Notification, NotificationKind
from holdfast.errors import BadChannel, NotDelivered
from holdfast.notifications import open_dispatcher
from holdfast.notifications.chat import TEAMS, VENDORS
from support.events import DAWN
from support.fakes import FixedClock

KEY = "hush" * 6
URLS = [
    f"slack://T{'A' * 9}/B{'B' * 9}/{KEY}",
    f"discord://{'1' * 18}/{KEY * 3}",
    "tgram://123456789:AAabcdefghijklmnopqrstuvwxyz012345678/12345",
    f"pover://{'u' * 30}@{'t' * 30}",
    f"pbul://{'a' * 34}",
    f"pagerduty://{'A' * 32}@{'B' * 32}",
    f"opsgenie://{'a' * 36}",
    f"gchat://space/{KEY}/{KEY}",
    f"wxteams://{'A' * 80}",
    f"twilio://AC{'1' * 32}:{'b' * 32}@15551234567/15557654321",
    f"splunk://route@{'a' * 36}",
    f"{TEAMS}://prod-1.westeurope.logic.azure.com/{'a' * 32}/{KEY}",
]
LONGEST = {
    "twilio": 160,
    "splunk": 400,
    "discord": 2000,
    "pover": 1024,
    "tgram": 4096,
    "gchat": 4000,
}
"""Character limits of vendors below the maximum of a message."""


def chat_message(
    count: int = 1, kind: NotificationKind = NotificationKind.TEST, text: str = "tiny"
) -> Message:
    notifications = [
        Notification(id=f"n{n}", kind=kind, at=DAWN, text=f"{text} {n}").body()
        for n in range(count)
    ]
    return Message(id="msg_1", payload=payload("vision", "ops", notifications, DAWN))


def send(url: str, message: Message) -> None:
    post = open_dispatcher(FixedClock())
    post.destination(url)
    post.send(url, [], message)


@pytest.fixture
def vendors() -> Iterator[responses.RequestsMock]:
    """A simulated internet that accepts every request."""
    with responses.RequestsMock() as internet:
        found = {"ok": True, "requestId": "1"}
        internet.post(re.compile("https://(?!hooks.slack)"), json=found)
        internet.post(re.compile(r"https://hooks\.slack\.com/"), body="ok")
        internet.assert_all_requests_are_fired = False
        yield internet


def body_of(internet: responses.RequestsMock) -> str:
    sent = internet.calls[0].request.body
    assert sent is not None
    return sent.decode() if isinstance(sent, bytes) else str(sent)


def test_every_chat_service_has_an_example() -> None:
    assert {urlsplit(url).scheme for url in URLS} == {*VENDORS, TEAMS}


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("url", URLS, ids=lambda url: urlsplit(url).scheme)
def test_message_of_any_size_is_one_request_to_the_vendor(
    vendors: responses.RequestsMock, url: str, count: int
) -> None:
    """A test message and a message of fifty events are included.

    Opsgenie ignored the first, and Discord rejected the second as too long.
    """
    scheme = urlsplit(url).scheme

    send(url, chat_message(count, text="tiny " + "x" * 60))

    [call] = vendors.calls
    host = urlsplit(url).hostname if scheme == TEAMS else VENDORS[scheme][0]
    assert urlsplit(str(call.request.url)).hostname == host
    assert "tiny" in body_of(vendors)


@pytest.mark.parametrize(
    "url",
    [url for url in URLS if urlsplit(url).scheme in LONGEST],
    ids=lambda url: urlsplit(url).scheme,
)
def test_message_fits_the_limit_of_its_vendor(vendors: responses.RequestsMock, url: str) -> None:
    send(url, chat_message(50, text="tiny <i>*" + "x" * 60))

    sent = body_of(vendors)
    fields = parse_qs(sent) if "=" in sent.partition("{")[0] else json.loads(sent)
    answer = [
        fields.get(key, "") for key in ("text", "content", "message", "state_message", "Body")
    ]
    longest = max(len(item[0] if isinstance(item, list) else item) for item in answer)
    assert 0 < longest <= LONGEST[urlsplit(url).scheme]


@pytest.mark.parametrize("url", URLS[:3], ids=lambda url: urlsplit(url).scheme)
def test_job_text_cannot_mention_a_whole_channel(vendors: responses.RequestsMock, url: str) -> None:
    send(url, chat_message(text="<!channel> @everyone @here <b>"))

    sent = body_of(vendors)
    assert "<!channel" not in sent
    assert "@everyone" not in sent
    assert "@here" not in sent
    assert "everyone" in sent


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        (NotificationKind.FAILED, "critical"),
        (NotificationKind.BUDGET, "warning"),
        (NotificationKind.SUCCEEDED, "info"),
        (NotificationKind.RECOVERED, "info"),
    ],
)
def test_pager_severity_follows_notification_kind(
    vendors: responses.RequestsMock, kind: NotificationKind, severity: str
) -> None:
    send(URLS[5], chat_message(kind=kind))

    assert json.loads(body_of(vendors))["payload"]["severity"] == severity


def test_rejection_states_the_status_and_logs_no_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    with responses.RequestsMock() as internet:
        internet.post(re.compile("https://"), status=404, body=f"no such hook {KEY}")

        with pytest.raises(
            NotDelivered, match=r"^slack did not accept the message; it responded with status 404$"
        ):
            send(URLS[0], chat_message())

    assert KEY not in caplog.text


def test_unreachable_vendor_raises_not_delivered(caplog: pytest.LogCaptureFixture) -> None:
    with responses.RequestsMock() as internet:
        internet.post(re.compile("https://"), body=requests.ConnectionError(f"/services/{KEY}"))

        with pytest.raises(NotDelivered, match=r"^slack did not accept the message$") as caught:
            send(URLS[0], chat_message())

    assert KEY not in caplog.text + caught.value.detail


def test_unparsable_chat_url_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BadChannel) as caught:
        open_dispatcher(FixedClock()).destination("slack://hush-hush/half/key")

    assert "hush" not in caplog.text + caught.value.detail


def test_a_redirect_of_a_vendor_is_not_followed() -> None:
    with responses.RequestsMock() as internet:
        moved = {"Location": "https://169.254.169.254/"}
        internet.post(re.compile("https://hooks"), status=307, headers=moved)

        with pytest.raises(NotDelivered, match="responded with status 307"):
            send(URLS[0], chat_message())

        assert len(internet.calls) == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"{URLS[2]}/67890", "more than one room"),
        ("T0HUSH/B0HUSH/hushhush", "has no scheme"),
        ("discord://[hush/x", "cannot parse it"),
    ],
)
def test_invalid_chat_url_is_refused_without_its_key(url: str, why: str) -> None:
    with pytest.raises(BadChannel, match=why) as caught:
        open_dispatcher(FixedClock()).destination(url)

    assert "hush" not in caught.value.detail.lower()
