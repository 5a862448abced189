"""E-mail through the mail server in the service's settings.

A channel's URL names recipients only and no server, so that no egress policy is needed.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from threading import Timer
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.domain.notifications.channels import Destination, Message, TransportKind
from holdfast.egress_policy import system_tls
from holdfast.errors import BadChannel, BadRequest, NotDelivered
from holdfast.ports import Clock

TIMEOUT_S: Final = 10.0
"""Time limit of a mail server for each step.
A lower value fails on servers that delay unknown senders; a higher value occupies a thread longer."""
TOTAL_S: Final = 60.0
"""Time limit of a mail server in total.
A lower value fails on busy servers; a value above the lease of a message makes another replica send it as well."""
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+"
)
MAX_RECIPIENTS: Final = 10
"""Maximum number of addresses in a channel.
A lower value makes users create mailing lists; a higher value makes the service useful for spam."""
MAX_REPLY_CHARS: Final = 300
"""Characters kept of a mail server's reply."""
_PERMANENT: Final = 500
"""Lowest SMTP code of a permanent failure."""
_DEFAULT_PORTS: Final = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """A mail server and its connection settings."""

    host: str
    port: int
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)
    is_tls: bool = False
    """Whether the connection starts with TLS, as on port 465."""
    starts_tls: bool = True
    """Whether STARTTLS is required."""

    @classmethod
    def parse(cls, url: str) -> SmtpServer:
        """Parse `smtp[s]://user:password@host:port?from=holdfast@example.com`.

        Raises:
            BadRequest: the URL is invalid.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            # The error's text is omitted, because it may contain part of a password.
            raise BadRequest(
                "HOLDFAST_SMTP_URL: not a valid URL; write @, : and / in a password as %40, %3A, %2F"
            ) from error
        query = parse_qs(parts.query)
        sender = query.get("from", [""])[0]
        tls = query.get("tls", ["yes"])[0]
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or tls not in {"yes", "no"}:
            raise BadRequest(
                "HOLDFAST_SMTP_URL: write smtp://user:password@host:587?from=holdfast@example.com, or smtps://"
            )
        if not _ADDRESS.fullmatch(sender):
            raise BadRequest(
                "HOLDFAST_SMTP_URL: add the sender, such as ?from=holdfast@example.com"
            )
        return cls(
            host=parts.hostname,
            port=port or _DEFAULT_PORTS[parts.scheme],
            sender=sender,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            is_tls=parts.scheme == "smtps",
            starts_tls=parts.scheme == "smtp" and tls == "yes",
        )


@dataclass(frozen=True)
class MailTransport:
    """Transport for e-mail."""

    server: SmtpServer | None
    """Mail server; None: this service has none."""
    clock: Clock
    tls: ssl.SSLContext = field(default_factory=system_tls)

    def destination(self, url: str) -> Destination:
        """Return the recipients of an address such as `mailto:ada@example.com,bob@example.com`.

        Raises:
            BadChannel: there are no recipients, or this service sends no e-mail.
        """
        if self.server is None:
            raise BadChannel(
                "url: this service sends no e-mail; set HOLDFAST_SMTP_URL to a mail server"
            )
        readers = _recipients(url)
        hosts = sorted({reader.rpartition("@")[2] for reader in readers})
        return Destination(transport=TransportKind.MAIL, shown=f"mailto:…@{', '.join(hosts)}")

    def send(self, url: str, message: Message) -> None:
        """Send a message; return once the mail server has accepted it for all recipients.

        Raises:
            NotDelivered: the mail server did not accept it.
            BadChannel: the URL is invalid, or this service does not send there.
        """
        self.destination(url)
        assert self.server is not None
        readers = _recipients(url)
        mail = self._email(self.server, readers, message)
        try:
            refused = self._deliver(self.server, mail)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            reply = f"the mail server responded {error.smtp_code} {_text(error.smtp_error)}"
            raise NotDelivered(_masked(reply, readers)) from error
        except (OSError, smtplib.SMTPException) as error:
            reply = f"the mail server: {type(error).__name__}: {error}"
            raise NotDelivered(_masked(reply, readers)) from error
        if refused:
            codes = sorted({code for code, _ in refused.values()})
            # Accepted recipients have the message; a retry sends it to them again.
            for_good = min(codes) >= _PERMANENT
            raise NotDelivered(
                f"the mail server refused {len(refused)} of {len(readers)} recipients, with {', '.join(map(str, codes))}",
                for_good=for_good,
            )

    def _deliver(self, server: SmtpServer, mail: EmailMessage) -> Mapping[str, tuple[int, bytes]]:
        """Return the refused recipients with code and text, if others were accepted."""
        link = self._open(server)
        end = Timer(TOTAL_S, partial(_abort, link))
        end.daemon = True
        end.start()
        try:
            self._authenticate(link, server)
            refused = link.send_message(mail)
            # The message is accepted, so errors of the closing handshake are ignored.
            with suppress(OSError, smtplib.SMTPException):
                link.quit()
            return refused
        finally:
            end.cancel()
            link.close()

    def _open(self, server: SmtpServer) -> smtplib.SMTP:
        if server.is_tls:
            return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=self.tls)
        return smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)

    def _authenticate(self, link: smtplib.SMTP, server: SmtpServer) -> None:
        if server.starts_tls:
            link.starttls(context=self.tls)
        if server.user:
            link.login(server.user, server.password)

    def _email(self, server: SmtpServer, readers: list[str], message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"] = server.sender, ", ".join(readers)
        # Text of jobs and launchers may contain line breaks; a header must not.
        mail["Subject"] = " ".join(message.subject.split())[:200]
        mail["Date"] = format_datetime(self.clock.now())
        # The same for every retry, so that mail clients show the message once.
        mail["Message-ID"] = f"<{message.id}@{server.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(f"{message.text}\n")
        return mail


def _recipients(url: str) -> list[str]:
    words = url.partition(":")[2].removeprefix("//").split(",")
    readers = [unquote(word).strip() for word in words]
    for reader in readers:
        if not _ADDRESS.fullmatch(reader):
            raise BadChannel(
                "url: write mailto: and addresses separated by commas, such as mailto:ada@example.com; "
                "messages go through the service's mail server"
            )
    if len(readers) > MAX_RECIPIENTS:
        raise BadChannel(
            f"url: a channel has at most {MAX_RECIPIENTS} recipients; use a mailing list"
        )
    return readers


def _text(reply: bytes | str) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else reply


def _masked(reply: str, readers: Sequence[str]) -> str:
    """Mask recipients in a mail server's reply, because channels display hosts only."""
    for reader in readers:
        reply = reply.replace(reader, f"…@{reader.rpartition('@')[2]}")
    return reply[:MAX_REPLY_CHARS]


def _abort(link: smtplib.SMTP) -> None:
    if sock := link.sock:  # TLS replaces the socket.
        with suppress(OSError):  # It is already closed.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
