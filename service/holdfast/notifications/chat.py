"""Chats and pagers through apprise, limited to services whose host is the vendor's.

apprise opens its own connections, which cannot be checked here. A service is therefore supported only if its URL cannot
name another host. Options are limited to formatting, because others read files or disable checks.
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
from holdfast.domain.notifications.events import NotificationKind
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
"""Supported services and their hosts.
apprise's own registry is not used: it loads 170 modules, and later versions may add services."""
TEAMS: Final = "workflow"
"""Microsoft Teams, whose URL contains a host that must be Microsoft's."""
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
"""Allowed query options.
Excluded are `template`, which reads a local file, and `verify`, `redirect`, `rto`."""
_UNREADABLE: Final = (
    "url: apprise cannot parse it; see the page of this service at https://appriseit.com"
)
TIMEOUT_S: Final = 4.0
"""Time limit of a vendor for each step."""
_FILL_SHARE: Final = 0.9
"""Share of a vendor's maximum message length that is used.
With a lower value, more events are only counted; with a higher value, apprise's escapes exceed the limit and the end
is cut off."""
_EXTRA_OPTIONS: Final[Mapping[str, str]] = {
    # Without these, only failures and warnings raise an alert, and recoveries and tests are not sent.
    "opsgenie": "&:info=new&:success=new",
}
_FAILURES: Final = frozenset(
    {
        NotificationKind.FAILED,
        NotificationKind.SAVING_FAILED,
        NotificationKind.CLEANUP_FAILED,
        NotificationKind.NO_CAPACITY,
    }
)
_SUCCESSES: Final = frozenset(
    {
        NotificationKind.SUCCEEDED,
        NotificationKind.RECOVERED,
        NotificationKind.CANCELLED,
        NotificationKind.TEST,
    }
)
# Prevents text of jobs and launchers from mentioning a whole room or opening a tag.
_ESCAPES: Final = str.maketrans({"<": "\u2039", ">": "\u203a"})
_MENTIONS: Final = re.compile(r"@(?=everyone|here|channel|all)")


class _StatusFilter(logging.Filter):
    """Captures the status with which a vendor refused this thread's message.

    All other log messages of apprise are dropped, because they contain URLs and thus credentials of chat rooms.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last = local()

    @property
    def status(self) -> str:
        """The status as text; empty if none was captured."""
        code: str = getattr(self._last, "code", "")
        return f"; it responded with status {code}" if code else ""

    def reset(self) -> None:
        """Clear the captured status."""
        self._last.code = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Capture the status and drop the record."""
        if found := re.search(r"\berror=(\d{3})\b", record.getMessage()):
            self._last.code = found[1]
        return False


_STATUS_FILTER: Final = _StatusFilter()
logging.getLogger("apprise").addFilter(_STATUS_FILTER)


@dataclass(frozen=True)
class ChatTransport:
    """Transport for chats."""

    def destination(self, url: str) -> Destination:
        """Return where an apprise URL leads.

        Raises:
            BadChannel: apprise does not support it, or it may lead to an unchecked host or several rooms.
        """
        scheme, host = self._checked(url)
        # If one of several rooms refused a message, a retry would repeat it in all others.
        if len(self._open(url)) > 1:
            raise BadChannel("url: names more than one room; add one channel per room")
        return Destination(transport=TransportKind.CHAT, shown=f"{scheme}://{host}")

    def send(self, url: str, message: Message) -> None:
        """Send a message; return once the vendor has accepted it.

        Raises:
            NotDelivered: the vendor did not accept it.
            BadChannel: the URL is invalid, or this service does not send there.
        """
        scheme, _ = self._checked(url)
        service = self._open(url)
        title = _escape(message.subject)
        body = _escape(message.truncated(int(service.body_maxlen * _FILL_SHARE) - len(title)))
        _STATUS_FILTER.reset()
        try:
            taken = service.notify(
                title=title,
                body=body,
                notify_type=_notify_type(message),
                body_format=NotifyFormat.TEXT,
            )
        except (OSError, ValueError, LookupError, TypeError) as error:
            # The text of this error and of its cause may contain the URL.
            raise NotDelivered(f"{scheme}: {type(error).__name__}") from None
        if not taken:
            raise NotDelivered(f"{scheme} did not accept the message{_STATUS_FILTER.status}")

    def _checked(self, url: str) -> tuple[str, str]:
        """Return the URL's scheme and host."""
        scheme, colon, _ = url.partition("://")
        scheme = scheme.lower()
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError as error:
            raise BadChannel(_UNREADABLE) from error  # Its text may contain part of a credential.
        if not colon:
            raise BadChannel("url: has no scheme such as https:// or slack://")
        if scheme == TEAMS:
            if not host.endswith(_TEAMS_HOSTS):
                raise BadChannel(
                    f"url: the host of a Teams workflow must be Microsoft's, such as {_TEAMS_HOSTS[0]}"
                )
        elif scheme not in VENDORS:
            raise BadChannel(
                f"url: the scheme {scheme[:20]!r} is not supported; use https, mailto, {', '.join([*VENDORS, TEAMS])}"
            )
        odd = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - OPTIONS
        if odd or "?" in parts.query or ";" in parts.query:
            raise BadChannel(
                f"url: the option {min(odd, default='?')[:20]!r} is not allowed; allowed are {', '.join(sorted(OPTIONS))}"
            )
        return scheme, host if scheme == TEAMS else VENDORS[scheme][0]

    def _open(self, url: str) -> NotifyBase:
        scheme = url.partition("://")[0].lower()
        service = NotifyWorkflows if scheme == TEAMS else VENDORS[scheme][1]
        asset = AppriseAsset(app_id="Holdfast", http_redirects=False, secure_logging=True)
        limits = f"{'&' if '?' in url else '?'}cto={TIMEOUT_S}&rto={TIMEOUT_S}&overflow=truncate"
        limits += _EXTRA_OPTIONS.get(scheme, "")
        read = service.parse_url(url + limits)
        try:
            if read:
                return service(**read, asset=asset)
        except TypeError as error:  # The base class of apprise's exceptions.
            # The text contains the invalid part, which may be part of a credential.
            raise BadChannel(_UNREADABLE) from error
        raise BadChannel(_UNREADABLE)


def _escape(text: str) -> str:
    return _MENTIONS.sub("@\u200b", text.translate(_ESCAPES))


def _notify_type(message: Message) -> NotifyType:
    """Return the highest severity in the message, by which pagers decide whom to page."""
    if message.kinds & _FAILURES:
        return NotifyType.FAILURE
    return NotifyType.INFO if message.kinds <= _SUCCESSES else NotifyType.WARNING
