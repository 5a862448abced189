"""E-mail through a real SMTP server, and the supported chat services."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes, policy
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from holdfast.domain.notifications.channels import Message, payload
from holdfast.domain.notifications.events import Notification, NotificationKind
from holdfast.errors import BadChannel, BadRequest, NotDelivered
from holdfast.notifications import open_dispatcher
from holdfast.notifications.chat import VENDORS
from holdfast.notifications.smtp import SmtpServer
from support.events import DAWN
from support.fakes import FixedClock
from support.live_service import free_port

NOTIFICATION = Notification(
    id="n", kind=NotificationKind.FAILED, at=DAWN, text="tiny has failed:\nBcc: eve@example.com"
)
LETTER = Message(id="msg_1", payload=payload("vision", "ops", [NOTIFICATION.body()], DAWN))


class MailServer:
    """A mail server that records messages and responds with `answer`."""

    def __init__(self) -> None:
        self.got: list[Envelope] = []
        self.answer = "250 OK"
        self.refused: dict[str, str] = {}
        """Responses to refused recipients."""
        self.quit_response = "221 Bye"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802 - named by aiosmtpd
        self.got.append(envelope)
        return self.answer

    async def handle_RCPT(  # noqa: N802 - named by aiosmtpd
        self, server: Any, session: Any, envelope: Envelope, address: str, options: Any
    ) -> str:
        if address not in self.refused:
            envelope.rcpt_tos.append(address)
        return self.refused.get(address, "250 OK")

    async def handle_QUIT(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802 - named by aiosmtpd
        return self.quit_response


@pytest.fixture
def mail_server() -> MailServer:
    return MailServer()


@pytest.fixture
def smtp(mail_server: MailServer) -> Iterator[str]:
    """The URL of a mail server."""
    port = free_port()
    controller = Controller(mail_server, hostname="127.0.0.1", port=port, ready_timeout=60)
    controller.start()
    yield f"smtp://127.0.0.1:{port}?from=holdfast@example.com&tls=no"
    controller.stop()


def test_mail_is_sent_once_with_safe_headers(mail_server: MailServer, smtp: str) -> None:
    post = open_dispatcher(FixedClock(), smtp=smtp)

    post.send("mailto:ada@example.com,bob@example.org", [], LETTER)

    [envelope] = mail_server.got
    assert isinstance(envelope.content, bytes)
    mail = message_from_bytes(envelope.content, policy=policy.default)
    assert envelope.rcpt_tos == ["ada@example.com", "bob@example.org"]
    assert mail["Message-ID"] == "<msg_1@example.com>"
    assert mail["From"] == "holdfast@example.com"
    # Text of a job must not create a header.
    assert mail["Subject"] == "[vision] tiny has failed: Bcc: eve@example.com"
    assert mail["Bcc"] is None
    assert "tiny has failed:" in mail.get_content()


def test_smtp_error_raises_not_delivered(mail_server: MailServer, smtp: str) -> None:
    mail_server.answer = "451 later"

    with pytest.raises(NotDelivered, match="responded 451 later"):
        open_dispatcher(FixedClock(), smtp=smtp).send("mailto:ada@example.com", [], LETTER)


@pytest.mark.parametrize(
    ("answer", "for_good"), [("550 <bob@example.org> who", True), ("451 later", False)]
)
def test_partially_refused_mail_reports_whether_to_retry(
    mail_server: MailServer, smtp: str, answer: str, *, for_good: bool
) -> None:
    mail_server.refused = {"bob@example.org": answer}

    with pytest.raises(NotDelivered, match="refused 1 of 2 recipients, with") as caught:
        open_dispatcher(FixedClock(), smtp=smtp).send(
            "mailto:ada@example.com,bob@example.org", [], LETTER
        )

    assert [envelope.rcpt_tos for envelope in mail_server.got] == [["ada@example.com"]]
    assert caught.value.for_good is for_good
    assert "bob" not in caught.value.detail


def test_refused_sole_recipient_is_not_named_in_the_error(
    mail_server: MailServer, smtp: str
) -> None:
    mail_server.refused = {"ada@example.com": "550 <ada@example.com> who"}

    with pytest.raises(NotDelivered, match="refused 1 of 1 recipients, with 550") as caught:
        open_dispatcher(FixedClock(), smtp=smtp).send("MAILTO:ada@example.com", [], LETTER)

    assert (caught.value.for_good, mail_server.got) == (True, [])


def test_recipient_in_a_server_reply_is_masked(mail_server: MailServer, smtp: str) -> None:
    mail_server.answer = "554 no mail for ada@example.com"

    with pytest.raises(NotDelivered, match="responded 554 no mail for …@example"):
        open_dispatcher(FixedClock(), smtp=smtp).send("mailto:ada@example.com", [], LETTER)


def test_accepted_mail_counts_as_sent_despite_quit_error(
    mail_server: MailServer, smtp: str
) -> None:
    mail_server.quit_response = "421 too busy for manners"

    open_dispatcher(FixedClock(), smtp=smtp).send("mailto:ada@example.com", [], LETTER)

    assert len(mail_server.got) == 1


def test_partial_password_is_in_no_error() -> None:
    with pytest.raises(BadRequest, match="password as %40") as caught:
        SmtpServer.parse("smtp://ada:pa/ss@mail.example.com?from=a@example.com")

    assert "pa'" not in caught.value.detail


def test_no_mail_is_sent_without_tls(mail_server: MailServer, smtp: str) -> None:
    with pytest.raises(NotDelivered, match="the mail server"):
        open_dispatcher(FixedClock(), smtp=smtp.replace("&tls=no", "")).send(
            "mailto:ada@example.com", [], LETTER
        )

    assert mail_server.got == []


def test_unreachable_mail_server_raises_not_delivered() -> None:
    post = open_dispatcher(FixedClock(), smtp="smtp://127.0.0.1:9?from=a@example.com")

    with pytest.raises(NotDelivered, match="ConnectionRefusedError"):
        post.send("mailto:ada@example.com", [], LETTER)


@pytest.mark.parametrize(
    "url",
    [
        "mailto:",
        "mailto:ada",
        "mailto:ada@localhost",
        "mailto://user:pass@smtp.evil.example",
        "mailto:ada@example.com?smtp=10.0.0.1",
        "mailto:ada@example.com%0d%0aBcc:eve@example.com",
        f"mailto:{','.join(['ada@example.com'] * 11)}",
    ],
)
def test_invalid_recipient_is_refused(url: str) -> None:
    """A channel's author cannot choose the server either, as apprise would allow."""
    post = open_dispatcher(FixedClock(), smtp="smtp://127.0.0.1?from=a@example.com")

    with pytest.raises(BadChannel, match=r"^url: "):
        post.destination(url)


def test_mail_requires_a_configured_server() -> None:
    with pytest.raises(BadChannel, match="HOLDFAST_SMTP_URL"):
        open_dispatcher(FixedClock()).destination("mailto:ada@example.com")


def test_only_hosts_of_recipients_are_shown() -> None:
    post = open_dispatcher(FixedClock(), smtp="smtp://127.0.0.1?from=a@example.com")

    assert post.destination("mailto:ada@example.com").shown == "mailto:…@example.com"


@pytest.mark.parametrize(
    "url", ["", "http://host", "smtp://host", "smtp://?from=a@example.com", "smtp://h?from=a@b.c&tls=maybe", "smtp://h:x"]
)  # fmt: skip
def test_invalid_mail_server_url_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match=r"^HOLDFAST_SMTP_URL: "):
        SmtpServer.parse(url)


def test_a_mail_server_has_user_password_and_port() -> None:
    server = SmtpServer.parse("smtps://ada%40x:p%2Fw@mail.example.com?from=a@example.com")

    assert (server.host, server.port, server.is_tls) == ("mail.example.com", 465, True)
    assert (server.user, server.password) == ("ada@x", "p/w")
    assert "p/w" not in repr(server)


SLACK = f"slack://T{'A' * 9}/B{'B' * 9}/{'c' * 24}"
DISCORD = f"discord://{'1' * 18}/{'a' * 68}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (SLACK, "slack://hooks.slack.com"),
        (f"{SLACK}?footer=no", "slack://hooks.slack.com"),
        (DISCORD, "discord://discord.com"),
        ("tgram://123456789:AAabcdefghijklmnopqrstuvwxyz012345678/12345", "tgram://api.telegram.org"),
    ],
)  # fmt: skip
def test_vendor_chats_are_accepted_and_keys_hidden(url: str, shown: str) -> None:
    place = open_dispatcher(FixedClock()).destination(url)

    assert (place.transport, place.shown) == ("chat", shown)


@pytest.mark.parametrize(
    "url",
    [
        # Any host
        *("json://127.0.0.1", "jsons://10.0.0.1", "form://h", "xml://h", "gotify://h/t", "mmost://h/t", "rocket://h/t"),
        *("matrix://h", "nctalk://h", "mqtt://h", "syslog://", "rsyslog://h", "ntfy://h/t", "apprise://h/t", "irc://h"),
        *("mailtos://u:p@h", "smtp://h", "signal://h/1", "workflow://10.0.0.1/w/s", "workflow://evil.example/w/s"),
        *("workflow://logic.azure.com.evil.example/w/s", "teams://h", "dbus://", "file:///etc/passwd", "gopher://h", "nope"),
        # Options that read files, disable checks, or redirect
        *(f"{SLACK}?template=/etc/passwd", f"{DISCORD}?template=file:///etc/passwd", f"{SLACK}?verify=no"),
        *(f"{SLACK}?redirect=yes", f"{SLACK}?rto=9999", f"{DISCORD}?+X-Header=1", f"{DISCORD}?:key=1", f"{SLACK}?store=x"),
        *(f"{SLACK}?footer=no;template=/etc/passwd", f"{SLACK}?footer=no?template=/etc/passwd", f"{SLACK}?Template=x"),
        # URLs that apprise does not parse
        *("slack://", "discord://short"),
    ],
)  # fmt: skip
def test_all_other_chats_are_refused(url: str) -> None:
    with pytest.raises(BadChannel, match=r"^url: "):
        open_dispatcher(FixedClock()).destination(url)


def test_vendor_urls_name_no_host() -> None:
    for scheme, (_, service) in VENDORS.items():
        assert not any("{host}" in template for template in service.templates), scheme
