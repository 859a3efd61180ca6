"""Parses lists of hosts that a box may reach (`BoxSpec.network`), and tests whether a connection is allowed
by such a list.

An entry of a list is a host name; or `*.` followed by a domain, for all names below that domain; or `*`, for
all names. `:port` after a name or domain replaces the default ports 80 and 443. Names must resolve to public
addresses, unless the entry ends in `private`, as in `"mirror.example.org:8080 private"`. Metadata services of
clouds, link-local addresses and multicast are never reachable. All functions are pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

PORTS = frozenset({80, 443})
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_ENTRY = re.compile(r"(\*\.)?([^\s:/*]+)(?::([0-9]{1,5}))?( +private)?")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _networks(*texts: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_NEVER = _networks(
    # First this host, link-local (most clouds have their metadata service there), multicast and reserved;
    # then the other addresses of metadata services.
    *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/128", "fe80::/10", "ff00::/8"),
    *("100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::/32"),
)
_NOT_PUBLIC = _networks(
    # IANA's other special purposes: loopback, private, shared, protocols, examples, benchmarks. Of IPv6,
    # only 2000::/3 is public, without its ranges for tunnels and examples.
    *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24"),
    *("203.0.113.0/24", "::/3", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    *("4000::/2", "8000::/1"),
)


@dataclass(frozen=True)
class Rule:
    """One parsed entry of a list of allowed hosts."""

    name: str
    """The host name in lower case, or the domain if the entry begins with `*.`; empty for `*`."""
    below: bool
    """Whether the entry begins with `*.` or is `*`. Then the entry allows all names below the domain `name`
    (for `*`: all names), but not `name` itself."""
    ports: frozenset[int]
    """The ports of the host that a box may connect to."""
    private: bool
    """Whether `name` may also resolve to IP addresses that are not public."""

    def allows(self, host: str, port: int) -> bool:
        """Whether this rule allows connections to the port `port` of `host`. `host` is a host name in the
        form that `normal` returns."""
        ending = f".{self.name}" if self.name else ""
        matches = host.endswith(ending) if self.below else host == self.name
        return matches and port in self.ports


def rule(entry: str) -> Rule:
    """Parses one entry of a list of allowed hosts. Raises ValueError if the entry is invalid; the message
    says what is wrong and how to fix it."""
    if entry.strip() == "*":
        return Rule("", True, PORTS, False)
    match = _ENTRY.fullmatch(entry.strip())
    if match is None:
        raise ValueError(f"{entry!r} is not a host: write `name`, `*.name`, or either with `:port`")
    below, name, port, private = bool(match[1]), normal(match[2]), match[3], bool(match[4])
    if not name.isascii():
        raise ValueError(f"{entry!r} is not ASCII: write its `xn--` form")
    if is_address(name):
        raise ValueError(f"{entry!r} is an IP address: list hosts by name")
    if not _NAME.fullmatch(name) or len(name) > 253:
        raise ValueError(f"{entry!r} is not a host: write `name`, `*.name`, or either with `:port`")
    if below and "." not in name:
        raise ValueError(f"{entry!r} is too wide: name a domain of at least two labels")
    if private and (below or not port):
        raise ValueError(f"{entry!r}: `private` needs one full name with its port")
    if port and not 0 < int(port) < 65536:
        raise ValueError(f"{entry!r}: the port must be 1 to 65535")
    return Rule(name, below, frozenset({int(port)}) if port else PORTS, private)


def checked(entries: Iterable[str]) -> tuple[str, ...]:
    """Checks every entry of a list of allowed hosts, and returns the list as a tuple. Raises ValueError if an
    entry is invalid."""
    entries = tuple(entries)
    for entry in entries:
        rule(entry)
    return entries


Names = Annotated[tuple[str, ...], AfterValidator(checked)]
"""The type of a config field that lists allowed hosts. Pydantic checks every entry."""


def normal(host: str) -> str:
    """Returns the host name `host` in the form in which names are compared: lower case, without a final
    dot."""
    return host.lower().removesuffix(".")


def is_address(host: str) -> bool:
    """Whether `host` is an IP address and not a name, in any notation that a resolver may accept, such as
    `127.1`."""
    last = normal(host).rpartition(".")[2]
    return ":" in host or host.startswith("[") or last.isdigit() or last.startswith("0x")


def permits(address: str, *, private: bool) -> bool:
    """Whether a box may connect to the IP address `address`, to which an allowed host name was resolved.

    If `private` is true (`Rule.private` of the rule that allows the host name), addresses that are not public
    are permitted, too. Link-local addresses, multicast and metadata services of clouds are never permitted.
    """
    target = ipaddress.ip_address(address)
    if isinstance(target, ipaddress.IPv6Address):  # an embedded IPv4 address is checked as such
        if target in _NAT64:
            target = ipaddress.IPv4Address(int(target) & 0xFFFFFFFF)
        elif target.ipv4_mapped is not None:
            target = target.ipv4_mapped
    networks = _NEVER if private else _NEVER + _NOT_PUBLIC
    return not any(target in network for network in networks)
