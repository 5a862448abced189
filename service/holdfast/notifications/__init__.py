"""Sends notifications: signed webhooks, e-mail, and chats through apprise.

The URL's scheme selects the transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.domain.notifications.channels import Destination, Message
from holdfast.egress_policy import EgressPolicy, networks
from holdfast.errors import BadChannel
from holdfast.notifications.chat import ChatTransport
from holdfast.notifications.smtp import MailTransport, SmtpServer
from holdfast.notifications.webhook import WebhookTransport
from holdfast.ports import Clock

MAX_URL_CHARS = 2000
"""Maximum length of a URL.
A lower value rejects those of Teams; a higher value has no benefit."""


@dataclass(frozen=True)
class Dispatcher:
    """All transports of notifications."""

    webhooks: WebhookTransport
    mail: MailTransport
    chats: ChatTransport

    def destination(self, url: str) -> Destination:
        """Return where a URL leads, without network access.

        Raises:
            BadChannel: the URL is invalid, or this service does not send there.
        """
        if len(url) > MAX_URL_CHARS:
            raise BadChannel(f"url: is longer than {MAX_URL_CHARS} characters")
        return self._transport(url).destination(url)

    def send(self, url: str, secrets: Sequence[str], message: Message) -> None:
        """Send a message; return once the receiver has accepted it.

        Raises:
            NotDelivered: it was not accepted, or the result is unknown.
            BadChannel: the URL is invalid, or this service does not send there.
        """
        match self._transport(url):
            case WebhookTransport() as webhooks:
                webhooks.send(url, secrets, message)
            case way:
                way.send(url, message)

    def _transport(self, url: str) -> WebhookTransport | MailTransport | ChatTransport:
        match url.partition(":")[0].lower():
            case "https" | "http":
                return self.webhooks
            case "mailto":
                return self.mail
            case _:
                return self.chats


def open_dispatcher(clock: Clock, *, allowed: str = "", smtp: str | None = None, takes_http: bool = False) -> Dispatcher:  # fmt: skip
    """Open all transports as configured by settings.

    Raises:
        BadRequest: a setting is invalid.
    """
    return Dispatcher(
        webhooks=WebhookTransport(EgressPolicy(networks(allowed)), clock, allows_http=takes_http),
        mail=MailTransport(SmtpServer.parse(smtp) if smtp else None, clock),
        chats=ChatTransport(),
    )
