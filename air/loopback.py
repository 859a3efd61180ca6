"""Decides whether a request's `Host` header names this machine.

A web page can make its own name resolve to a loopback address (DNS rebinding). Its requests then reach a
server on this machine as those of the same site, so the browser shows the answers to the page. Their `Host`
is still the page's name. A server with a token needs no such check, because the page does not know the token.
A program that sends no `Host` is no browser.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

REFUSAL = (
    "the Host {host!r} is not this machine's: without a token, a server answers only to localhost, names "
    "below it, and loopback addresses; call it by one of these, or give it a token"
)


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address, which only programs on this machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_own(host: str, domains: Sequence[str]) -> bool:
    """Whether the value of a `Host` header is a loopback address, `localhost`, one of `domains`, or a name
    below these. Ports do not count. A server without a token listens on loopback addresses alone, so the
    address on which it listens is among them."""
    name = _name(host)
    if not name:
        return False
    names = ["localhost", *map(_name, domains)]
    return is_loopback(name) or any(name == one or name.endswith(f".{one}") for one in names if one)


def _name(host: str) -> str:
    """Returns the name or address in a `Host` header, without port; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_own_origin(origin: str | None) -> bool:
    """Whether the header `Origin` is absent, as in requests of programs, or names a web page of this
    machine."""
    try:
        return origin is None or is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
