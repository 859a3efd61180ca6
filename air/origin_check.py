"""Decides whether an HTTP server without authentication must refuse a request, because a web page of another
site may have sent it.

Such a server listens only on loopback addresses. Still, any web page can make a browser on this machine send
requests to the server. Two request headers reveal such a page:

- `Origin` is the site of the page. A page can send requests to a loopback address without the server's
  permission, for example with a body of the type `text/plain`. It cannot read the response, but the request
  may have an effect.
- `Host` is the host name in the URL of the request. In an attack by DNS rebinding, the host name of the page
  resolves to a loopback address. The browser then takes the server for the page's own site, and the page can
  read the responses. Their requests have the page's host name as `Host`.

A page can send some requests, such as those of its images, by GET and without `Origin`. So a path on which a
GET request has an effect must also check further headers (`foreign_page`).

A request without one of the headers passes the check of this header: it is taken for the request of a program
other than a browser. A server that demands a secret token needs no such check, because the page does not know
the token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

_BROWSER = "Mozilla/"
"""The beginning of the header `User-Agent` of all current graphical browsers. A web page cannot change it in
a request to another site, unless this site allows it. Some other browsers begin differently, such as old
versions of Opera and browsers for terminals; their requests count as those of programs."""


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or a loopback address, which only programs on this machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def foreign_host(hosts: Sequence[str], domains: Sequence[str] = ()) -> str:
    """Checks the `Host` headers of a request to a server on a loopback address. Returns a message for the
    client that says why the server must refuse the request, or an empty string if the server may answer.
    `domains` are further host names of the server, besides `localhost`."""
    for host in hosts:
        if not is_own(host, domains):
            return (
                f"the Host {host[:100]!r} is not this machine's: the server answers only to localhost, "
                "names below it, and loopback addresses"
            )
    return ""


def foreign_origin(origin: str | None) -> str:
    """Checks the `Origin` header of a request to a server on a loopback address. Returns a message for the
    client that says why the server must refuse the request, or an empty string if the server may answer.
    `origin` is None if the request has no such header; the server may then answer."""
    if is_own_origin(origin):
        return ""
    return f"the Origin {str(origin)[:100]!r} is a web page of another site, which may not send requests"


def foreign_page(fetch_site: str | None, user_agent: str | None) -> str:
    """Checks a GET request that has an effect. Returns a message for the client that says why the server must
    refuse the request, or an empty string if the server may answer. `fetch_site` is the request's header
    `Sec-Fetch-Site`, by which browsers say which page sends the request, and `user_agent` is its header
    `User-Agent`; both are None if the request does not have them. Only the server's own pages
    (`same-origin`) and the user (`none`) may send it: `same-site` is any page of this machine, whatever its
    port. A browser that does not send `Sec-Fetch-Site` is refused: old ones never send it, and new ones do
    not send it to some addresses, such as 0.0.0.0."""
    if fetch_site is None and not (user_agent or "").startswith(_BROWSER):
        return ""
    if fetch_site in ("none", "same-origin"):
        return ""
    return "a web page of another site or port may not send this request, which has an effect"


def is_own(host: str, domains: Sequence[str]) -> bool:
    """Whether the value of a `Host` header names this machine: it is a loopback address, `localhost`, one of
    `domains`, or a subdomain of one of these names. A port in the header is ignored."""
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
    """Returns whether a request with this `Origin` header comes from this machine. It does if the header
    names a web page on a loopback address, or if the header is absent (None), as in requests of programs
    other than browsers."""
    try:
        return origin is None or is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
