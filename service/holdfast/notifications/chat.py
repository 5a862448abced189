"""Chats and pagers, through apprise: those of its services alone whose host is the vendor's.

apprise makes its own connections, which nobody here can check. So a service is taken if no part of its URL can name
another host, and of the options only those that change how a message looks: others read files, or turn checks off.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from threading import local
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from apprise import AppriseAsset, NotifyFormat, NotifyType
from apprise.plugins.base import NotifyBase
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.google_chat import NotifyGoogleChat
from apprise.plugins.opsgenie import NotifyOpsgenie
from apprise.plugins.pagerduty import NotifyPagerDuty
from apprise.plugins.pushbullet import NotifyPushBullet
from apprise.plugins.pushover import NotifyPushover
from apprise.plugins.slack import NotifySlack
from apprise.plugins.splunk import NotifySplunk
from apprise.plugins.telegram import NotifyTelegram
from apprise.plugins.twilio import NotifyTwilio
from apprise.plugins.webexteams import NotifyWebexTeams
from apprise.plugins.workflows import NotifyWorkflows

from holdfast.domain.notifications.channels import Destination, Message, TransportKind
from holdfast.domain.notifications.events import NewsKind
from holdfast.errors import BadChannel, NotDelivered

VENDORS: Final[Mapping[str, tuple[str, type[NotifyBase]]]] = {
    "slack": ("hooks.slack.com", NotifySlack),
    "discord": ("discord.com", NotifyDiscord),
    "tgram": ("api.telegram.org", NotifyTelegram),
    "pover": ("api.pushover.net", NotifyPushover),
    "pbul": ("api.pushbullet.com", NotifyPushBullet),
    "pagerduty": ("events.pagerduty.com", NotifyPagerDuty),
    "opsgenie": ("api.opsgenie.com", NotifyOpsgenie),
    "gchat": ("chat.googleapis.com", NotifyGoogleChat),
    "wxteams": ("api.ciscospark.com", NotifyWebexTeams),
    "twilio": ("api.twilio.com", NotifyTwilio),
    "splunk": ("alert.victorops.com", NotifySplunk),
}
"""Services that are taken, and the host that each of them speaks to. Not through apprise's own list of all: that loads
170 modules, and would take whatever a later version adds."""
TEAMS: Final = "workflow"
"""Microsoft Teams, whose host is in the URL: it has to be one of Microsoft's."""
_TEAMS_HOSTS: Final = (".logic.azure.com", ".environment.api.powerplatform.com")
OPTIONS: Final = frozenset(
    {
        "to",
        "channel",
        "footer",
        "image",
        "avatar",
        "username",
        "region",
        "priority",
        "sound",
        "silent",
        "thread",
        "topic",
        "severity",
        "tags",
    }
)
"""What may follow `?`. Not among them: `template`, which reads a file of this machine; `verify`, `redirect`, `rto`."""
_UNREAD: Final = (
    "url: apprise cannot read it; look at its page on this service, https://appriseit.com"
)
TIMEOUT_S: Final = 4.0
"""How long a vendor may take for each step."""
_FILLED: Final = 0.9
"""Share of a vendor's longest message that is used. Smaller: more news is only counted. Bigger: what apprise escapes has
no room, and the end is cut off."""
_MORE: Final[Mapping[str, str]] = {
    # Else an alert is made of failures and warnings alone, and nothing is sent of a recovery or a test.
    "opsgenie": "&:info=new&:success=new",
}
_FAILURES: Final = frozenset({NewsKind.FAILED, NewsKind.SAVING_FAILED, NewsKind.CLEANUP_FAILED})
_FINE: Final = frozenset(
    {NewsKind.SUCCEEDED, NewsKind.RECOVERED, NewsKind.CANCELLED, NewsKind.TEST}
)
# In what jobs and launchers say, no room is called together, and no tag is begun.
_TAME: Final = str.maketrans({"<": "\u2039", ">": "\u203a"})
_CALLS: Final = re.compile(r"@(?=everyone|here|channel|all)")


class _Ear(logging.Filter):
    """Hears with which status the vendor of this thread's message refused it.

    Nothing else of what apprise says is logged: its words hold URLs, and so the keys to chat rooms.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heard = local()

    @property
    def status(self) -> str:
        """In words; empty where nothing was heard."""
        code: str = getattr(self._heard, "code", "")
        return f"; it answered {code}" if code else ""

    def forget(self) -> None:
        """Begin anew."""
        self._heard.code = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hear it, and let nobody else."""
        if found := re.search(r"\berror=(\d{3})\b", record.getMessage()):
            self._heard.code = found[1]
        return False


_EAR: Final = _Ear()
logging.getLogger("apprise").addFilter(_EAR)


@dataclass(frozen=True)
class Chats:
    """Sends to chats."""

    def place(self, url: str) -> Destination:
        """Where a URL of apprise leads.

        Raises:
            BadChannel: apprise does not know it, or it may lead to a host that nobody has checked, or to many rooms.
        """
        scheme, host = self._checked(url)
        # If one of several rooms refuses a message, the next try would bring it to all others again.
        if len(self._open(url)) > 1:
            raise BadChannel("url: names more than one room; add a channel for each")
        return Destination(way=TransportKind.CHAT, shown=f"{scheme}://{host}")

    def send(self, url: str, letter: Message) -> None:
        """Nothing, once the vendor has the message.

        Raises:
            NotDelivered: it did not take it.
            BadChannel: as with `place`.
        """
        scheme, _ = self._checked(url)
        service = self._open(url)
        title = _tame(letter.subject)
        body = _tame(letter.within(int(service.body_maxlen * _FILLED) - len(title)))
        _EAR.forget()
        try:
            taken = service.notify(
                title=title, body=body, notify_type=_gravity(letter), body_format=NotifyFormat.TEXT
            )
        except (OSError, ValueError, LookupError, TypeError) as error:
            # Its words, and those of what it came from, may have the URL.
            raise NotDelivered(f"{scheme}: {type(error).__name__}") from None
        if not taken:
            raise NotDelivered(f"{scheme} did not take it{_EAR.status}")

    def _checked(self, url: str) -> tuple[str, str]:
        """Its scheme and the host that is spoken to."""
        scheme, colon, _ = url.partition("://")
        scheme = scheme.lower()
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError as error:
            raise BadChannel(_UNREAD) from error  # Its words may hold half of a key.
        if not colon:
            raise BadChannel("url: begins with no scheme, such as https:// or slack://")
        if scheme == TEAMS:
            if not host.endswith(_TEAMS_HOSTS):
                raise BadChannel(
                    f"url: a workflow of Teams is at a host of Microsoft's, such as {_TEAMS_HOSTS[0]}"
                )
        elif scheme not in VENDORS:
            raise BadChannel(
                f"url: {scheme[:20]!r} is not sent to; take https, mailto, {', '.join([*VENDORS, TEAMS])}"
            )
        odd = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - OPTIONS
        if odd or "?" in parts.query or ";" in parts.query:
            raise BadChannel(
                f"url: the option {min(odd, default='?')[:20]!r} is not taken; known are {', '.join(sorted(OPTIONS))}"
            )
        return scheme, host if scheme == TEAMS else VENDORS[scheme][0]

    def _open(self, url: str) -> NotifyBase:
        scheme = url.partition("://")[0].lower()
        service = NotifyWorkflows if scheme == TEAMS else VENDORS[scheme][1]
        asset = AppriseAsset(app_id="Holdfast", http_redirects=False, secure_logging=True)
        limits = f"{'&' if '?' in url else '?'}cto={TIMEOUT_S}&rto={TIMEOUT_S}&overflow=truncate"
        limits += _MORE.get(scheme, "")
        read = service.parse_url(url + limits)
        try:
            if read:
                return service(**read, asset=asset)
        except TypeError as error:  # The parent of what apprise raises.
            # Its words hold what was wrong, which may be half of a key.
            raise BadChannel(_UNREAD) from error
        raise BadChannel(_UNREAD)


def _tame(text: str) -> str:
    return _CALLS.sub("@\u200b", text.translate(_TAME))


def _gravity(letter: Message) -> NotifyType:
    """How grave the gravest of it is, by which pagers decide whom they wake."""
    if letter.kinds & _FAILURES:
        return NotifyType.FAILURE
    return NotifyType.INFO if letter.kinds <= _FINE else NotifyType.WARNING
