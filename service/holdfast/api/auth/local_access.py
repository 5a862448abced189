"""Detection of requests by a person on the service's own machine.

They need no token while there are no users.

The peer of a local proxy also has a loopback address, and so does a browser that shows a page from any site. Any sign
of either requires a token. A proxy that speaks HTTP/1.1, adds no header and puts its own name in Host is
indistinguishable from a local program; a service behind such a proxy needs users.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from fastapi import Request

_LOCAL_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_PROXY_HEADERS: Final = re.compile(
    r"via|(x-)?forwarded|(x-)?forwarded-.*|x-(real|client|cluster-client|remote|originating)-?(ip|addr|host).*"
    r"|x-original-.*|x-envoy-.*|x-amzn-.*|x-amz-cf-.*|x-azure-.*|x-arr-.*|x-appengine-.*|x-varnish|x-nginx-.*"
    r"|(true|fastly|fly|wl-proxy|proxy)-client-ip|client-ip|cf-.*|cdn-.*|proxy-.*|x-proxy.*",
)
"""Headers that proxies add and that browsers and clients do not send."""
_REMEDY: Final = "set HOLDFAST_TOKEN, or run holdfast login"


def is_here(request: Request) -> bool:
    """Whether a request was sent to a name of this machine.

    Other names may be DNS rebinding by a web page.
    """
    return _LOCAL_HOST.fullmatch(request.headers.get("host", "")) is not None


def local_owner_refusal(request: Request) -> str | None:
    """Return why a request without a token is not from the local owner; None if it is."""
    if request.client is None or not _is_loopback(request.client.host):
        return f"an access token is required from another machine; {_REMEDY}"
    if proxy := _proxy_header(request):
        return (
            f"an access token is required, as the request came through a proxy ({proxy}); {_REMEDY}"
        )
    if not is_here(request):
        return f"an access token is required, as Host is not a name of this machine; {_REMEDY}"
    if _is_cross_site(request):
        return f"an access token is required, as the request comes from a page of another origin; {_REMEDY}"
    return None


def _proxy_header(request: Request) -> str | None:
    """Return the sign of a proxy, or None."""
    if request.scope.get("http_version") == "1.0":
        # Browsers and clients no longer use it; nginx uses it by default towards a service.
        return "it is HTTP/1.0"
    name = next((name for name in request.headers if _PROXY_HEADERS.fullmatch(name)), None)
    return f"it has the header {name}" if name else None


def _is_cross_site(request: Request) -> bool:
    own = f"{request.url.scheme}://{request.headers.get('host', '')}".lower()
    sites = set(request.headers.getlist("sec-fetch-site"))
    origins = {origin.lower() for origin in request.headers.getlist("origin")}
    return not (sites <= {"same-origin", "none"} and origins <= {own})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
