"""Who may ask: keys, and what keeps the web pages of other hosts out.

A page anywhere can make its visitor's browser send requests to 127.0.0.1. It is known by the name in Host (one of its own
that was pointed at this machine), by Origin, by Sec-Fetch-Site, and by a body that is not declared as JSON: for that one a
browser would ask first, and this server answers such a question without the headers that say yes.
"""
from __future__ import annotations

import hmac
import ipaddress
from email.message import Message
from http import HTTPStatus
from urllib.parse import urlsplit

from ..config import Settings
from ..protocol import ApiError, bad_request

LOCAL_NAMES = ("localhost", "host.docker.internal")
"""Names that always mean this machine. Any other name in Host could be a page's own that was pointed at 127.0.0.1."""


def check_key(headers: Message, wanted: str) -> None:
    """Raises `ApiError` 401 unless the wanted key (if any) was sent in one of its two places."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    given = [headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
    # header values were decoded as latin-1: this gives the bytes back
    matches = [hmac.compare_digest(value.encode("latin-1", "replace"), wanted.encode("utf-8")) for value in given]
    if wanted and not any(matches):
        raise ApiError(HTTPStatus.UNAUTHORIZED, "authentication_error", "invalid x-api-key")


def check_source(headers: Message, settings: Settings) -> None:
    """Raises `ApiError` 403 for a web page of somewhere else, and for a foreign name that points at this machine."""
    own = {*LOCAL_NAMES, settings.host.lower(), *(name.strip().lower() for name in settings.allowed_hosts.split(","))} - {""}
    hosts = headers.get_all("Host", [])
    if len(hosts) > 1:
        raise bad_request("Host: there must be one")
    for host in hosts:
        name = _host_name(f"//{host}")
        if not (_address(name) or _is_local(name, own)):  # an address needs no look-up that somebody could bend
            raise _forbidden(f"Host: {host[:80]!r} is not a name of this server; use its address, or name it in MLX_ALLOWED_HOSTS")
    if not all(_is_local(_host_name(origin), own) for origin in headers.get_all("Origin", [])):
        raise _forbidden("Origin: web pages of other hosts may not use this server")
    if "cross-site" in headers.get("Sec-Fetch-Site", "").lower():
        raise _forbidden("Sec-Fetch-Site: web pages of other hosts may not use this server")


def check_content_type(headers: Message) -> None:
    """Raises `ApiError` 415 for a body declared as what a page may send anywhere without asking, or as anything but JSON.

    Only programs leave the header out: a form has one, and a script's request without one carries Origin.
    """
    kind = headers.get("Content-Type", "application/json")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", f"Content-Type: {kind[:80]!r} is not taken, send application/json")


def is_loopback(address: str) -> bool:
    """Whether an address, perhaps with a scope, reaches nobody but this machine."""
    found = _address(address.partition("%")[0])
    return found is not None and found.is_loopback


def _forbidden(message: str) -> ApiError:
    return ApiError(HTTPStatus.FORBIDDEN, "permission_error", message)


def _host_name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_local(host: str, own: set[str]) -> bool:
    return host in own or host.endswith(".localhost") or is_loopback(host)
