"""Messages to people: signed webhooks, e-mail, and chats through apprise.

Which way a URL goes, its scheme says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.domain.notifications.channels import Destination, Message
from holdfast.egress_policy import EgressPolicy, networks
from holdfast.errors import BadChannel
from holdfast.notifications.chat import Chats
from holdfast.notifications.smtp import Mail, SmtpServer
from holdfast.notifications.webhook import Webhooks
from holdfast.ports import Clock

LONGEST_URL = 2000
"""Characters of a URL. Smaller refuses those of Teams; bigger is of use to nobody."""


@dataclass(frozen=True)
class Dispatcher:
    """All ways to send a message."""

    webhooks: Webhooks
    mail: Mail
    chats: Chats

    def place(self, url: str) -> Destination:
        """Where a URL leads, without asking anybody.

        Raises:
            BadChannel: it leads nowhere, or where this service sends nothing.
        """
        if len(url) > LONGEST_URL:
            raise BadChannel(f"url: is longer than {LONGEST_URL} characters")
        return self._way(url).place(url)

    def send(self, url: str, secrets: Sequence[str], letter: Message) -> None:
        """Nothing, once the message was taken.

        Raises:
            NotDelivered: it was not taken, or nobody knows.
            BadChannel: as with `place`.
        """
        match self._way(url):
            case Webhooks() as webhooks:
                webhooks.send(url, secrets, letter)
            case way:
                way.send(url, letter)

    def _way(self, url: str) -> Webhooks | Mail | Chats:
        match url.partition(":")[0].lower():
            case "https" | "http":
                return self.webhooks
            case "mailto":
                return self.mail
            case _:
                return self.chats


def open_post(clock: Clock, *, allowed: str = "", smtp: str | None = None, takes_http: bool = False) -> Dispatcher:  # fmt: skip
    """All ways, by what settings say.

    Raises:
        BadRequest: a setting cannot be understood.
    """
    return Dispatcher(
        webhooks=Webhooks(EgressPolicy(networks(allowed)), clock, takes_http=takes_http),
        mail=Mail(SmtpServer.read(smtp) if smtp else None, clock),
        chats=Chats(),
    )
