"""E-mail, through the one mail server that the service's settings name.

Whoever adds a channel says to whom, and never through which server: so no guard is needed on the way.
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
"""How long a mail server may take for each step. Smaller: one that looks at every sender for a while gets no mail.
Bigger: it holds a thread."""
WHOLE_S: Final = 60.0
"""How long it may take in all, however many steps there are. Smaller: busy ones are given up. Bigger than the lease of
a message: another replica sends it, too."""
_ADDRESS: Final = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+"
)
MOST_READERS: Final = 10
"""Addresses of one channel. Smaller: people make lists of their own. Bigger: the service is of use to who sends spam."""
LONGEST_ANSWER: Final = 300
"""Characters of what a mail server says that are kept."""
_FOR_GOOD: Final = 500
"""Codes from here on say that another try ends the same way."""
_DEFAULT_PORTS: Final = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """A mail server, and how it is spoken to."""

    host: str
    port: int
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)
    is_tls: bool = False
    """Whether TLS comes first, as on port 465."""
    starts_tls: bool = True
    """Whether TLS is asked for, and nothing sent without it."""

    @classmethod
    def read(cls, url: str) -> SmtpServer:
        """The server of `smtp[s]://user:password@host:port?from=holdfast@example.com`.

        Raises:
            BadRequest: it cannot be understood.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            # Not its words, which may repeat half of a password.
            raise BadRequest(
                "HOLDFAST_SMTP_URL: this is no URL; write @, : and / of a password as %40, %3A, %2F"
            ) from error
        said = parse_qs(parts.query)
        sender = said.get("from", [""])[0]
        tls = said.get("tls", ["yes"])[0]
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or tls not in {"yes", "no"}:
            raise BadRequest(
                "HOLDFAST_SMTP_URL: write smtp://user:password@host:587?from=holdfast@example.com, or smtps://"
            )
        if not _ADDRESS.fullmatch(sender):
            raise BadRequest("HOLDFAST_SMTP_URL: write who sends, as ?from=holdfast@example.com")
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
class Mail:
    """Sends e-mail."""

    server: SmtpServer | None
    """None: this service has no mail server."""
    clock: Clock
    tls: ssl.SSLContext = field(default_factory=system_tls)

    def place(self, url: str) -> Destination:
        """To whom an address such as `mailto:ada@example.com,bob@example.com` leads.

        Raises:
            BadChannel: it names nobody, or this service sends no mail.
        """
        if self.server is None:
            raise BadChannel(
                "url: this service sends no mail; HOLDFAST_SMTP_URL names its mail server"
            )
        readers = _readers(url)
        hosts = sorted({reader.rpartition("@")[2] for reader in readers})
        return Destination(way=TransportKind.MAIL, shown=f"mailto:…@{', '.join(hosts)}")

    def send(self, url: str, letter: Message) -> None:
        """Nothing, once the mail server has the message for all readers.

        Raises:
            NotDelivered: it did not take it.
            BadChannel: as with `place`.
        """
        self.place(url)
        assert self.server is not None
        readers = _readers(url)
        mail = self._mail(self.server, readers, letter)
        try:
            refused = self._sent(self.server, mail)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            told = f"the mail server answered {error.smtp_code} {_text(error.smtp_error)}"
            raise NotDelivered(_masked(told, readers)) from error
        except (OSError, smtplib.SMTPException) as error:
            told = f"the mail server: {type(error).__name__}: {error}"
            raise NotDelivered(_masked(told, readers)) from error
        if refused:
            codes = sorted({code for code, _ in refused.values()})
            # Those who were taken have it: sent again, it comes to them again.
            for_good = min(codes) >= _FOR_GOOD
            raise NotDelivered(
                f"the mail server refused {len(refused)} of {len(readers)} readers, with {', '.join(map(str, codes))}",
                for_good=for_good,
            )

    def _sent(self, server: SmtpServer, mail: EmailMessage) -> Mapping[str, tuple[int, bytes]]:
        """The readers that were refused, of whom others were not, each with a code and words."""
        link = self._open(server)
        end = Timer(WHOLE_S, partial(_cut, link))
        end.daemon = True
        end.start()
        try:
            self._greet(link, server)
            refused = link.send_message(mail)
            # It has the message: what it says to a goodbye does not matter.
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

    def _greet(self, link: smtplib.SMTP, server: SmtpServer) -> None:
        if server.starts_tls:
            link.starttls(context=self.tls)
        if server.user:
            link.login(server.user, server.password)

    def _mail(self, server: SmtpServer, readers: list[str], letter: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"] = server.sender, ", ".join(readers)
        # What jobs and launchers say may have lines of its own; a header has one.
        mail["Subject"] = " ".join(letter.subject.split())[:200]
        mail["Date"] = format_datetime(self.clock.now())
        # The same at every try, so that mail programs show it once.
        mail["Message-ID"] = f"<{letter.id}@{server.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(f"{letter.text}\n")
        return mail


def _readers(url: str) -> list[str]:
    words = url.partition(":")[2].removeprefix("//").split(",")
    readers = [unquote(word).strip() for word in words]
    for reader in readers:
        if not _ADDRESS.fullmatch(reader):
            raise BadChannel(
                "url: write mailto: and addresses with commas between, such as mailto:ada@example.com; the mail server is "
                "that of the service"
            )
    if len(readers) > MOST_READERS:
        raise BadChannel(f"url: a channel has at most {MOST_READERS} readers; make a mailing list")
    return readers


def _text(said: bytes | str) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said


def _masked(told: str, readers: Sequence[str]) -> str:
    """What a mail server says, without who the readers are: of a channel, only hosts are shown."""
    for reader in readers:
        told = told.replace(reader, f"…@{reader.rpartition('@')[2]}")
    return told[:LONGEST_ANSWER]


def _cut(link: smtplib.SMTP) -> None:
    if sock := link.sock:  # Another one since TLS began.
        with suppress(OSError):  # It is closed already.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
