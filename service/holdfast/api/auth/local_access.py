"""Whether a request was sent by a person on the service's own machine, who needs no token while there are no users.

The peer of a proxy on this machine is the loopback address, too, and so is that of a browser that shows a page from anywhere.
Every sign of either ends the mode without tokens. A proxy that speaks HTTP/1.1, adds no header and names itself in Host cannot
be told from a program of this machine; a service behind one needs users.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from fastapi import Request

_HERE: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_OF_PROXIES: Final = re.compile(
    r"via|(x-)?forwarded|(x-)?forwarded-.*|x-(real|client|cluster-client|remote|originating)-?(ip|addr|host).*"
    r"|x-original-.*|x-envoy-.*|x-amzn-.*|x-amz-cf-.*|x-azure-.*|x-arr-.*|x-appengine-.*|x-varnish|x-nginx-.*"
    r"|(true|fastly|fly|wl-proxy|proxy)-client-ip|client-ip|cf-.*|cdn-.*|proxy-.*|x-proxy.*",
)
"""Headers that a proxy adds and no browser or client sends by itself."""
_WAY_OUT: Final = "set HOLDFAST_TOKEN, or type holdfast login"


def is_here(request: Request) -> bool:
    """Whether a request was sent to a name of this machine: else a page could reach the service by DNS rebinding."""
    return _HERE.fullmatch(request.headers.get("host", "")) is not None


def why_not_here(request: Request) -> str | None:
    """Why a request without a token is not taken for one of this machine's owner; None: it is."""
    if request.client is None or not _is_loopback(request.client.host):
        return f"an access token is needed from another machine; {_WAY_OUT}"
    if proxy := _proxy(request):
        return (
            f"an access token is needed, as the request came through a proxy ({proxy}); {_WAY_OUT}"
        )
    if not is_here(request):
        return f"an access token is needed, as Host is no name of this machine; {_WAY_OUT}"
    if _is_of_foreign_page(request):
        return f"an access token is needed, as the request comes from a page of another origin; {_WAY_OUT}"
    return None


def _proxy(request: Request) -> str | None:
    """The sign of a proxy; None: there is none."""
    if request.scope.get("http_version") == "1.0":
        # Browsers and clients left it long ago; it is what nginx speaks to a service by default.
        return "it is HTTP/1.0"
    name = next((name for name in request.headers if _OF_PROXIES.fullmatch(name)), None)
    return f"it has the header {name}" if name else None


def _is_of_foreign_page(request: Request) -> bool:
    own = f"{request.url.scheme}://{request.headers.get('host', '')}".lower()
    sites = set(request.headers.getlist("sec-fetch-site"))
    origins = {origin.lower() for origin in request.headers.getlist("origin")}
    return not (sites <= {"same-origin", "none"} and origins <= {own})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
