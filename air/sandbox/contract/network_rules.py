"""What a box may reach of the network, by name: pure rules, for `BoxSpec.network` and tasks.

An entry is a host's name, or `*.` and a domain for all names below it (not the domain itself); then
`:port` for one port in place of 80 and 443. What it resolves to must be a public address. A server
of an intranet is listed with the word `private` behind its full name and port, as in
`"mirror.example.org:8080 private"`: that name may resolve to private, loopback and other addresses
that are not public. Clouds' metadata, link-local addresses and multicast are never reached.
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
    # This host, link-local (where clouds keep their metadata), multicast and reserved; then the
    # metadata services of clouds that keep them elsewhere.
    *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/128", "fe80::/10", "ff00::/8"),
    *("100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::/32"),
)
_NOT_PUBLIC = _networks(
    # IANA's other special purposes: loopback, private, shared, protocols, examples, benchmarks; of
    # version 6 only 2000::/3 is public, less tunnels and examples.
    *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24"),
    *("203.0.113.0/24", "::/3", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    *("4000::/2", "8000::/1"),
)


@dataclass(frozen=True)
class Rule:
    """One entry, taken apart."""

    name: str
    """A host's name, or the domain behind `*.`, in lower case."""
    below: bool
    """Whether it stands for all names below `name`, and not for `name`."""
    ports: frozenset[int]
    """The ports that may be reached."""
    private: bool
    """Whether it may resolve to addresses that are not public."""

    def allows(self, host: str, port: int) -> bool:
        """Whether it is about this host (see `normal`) and port."""
        named = host.endswith(f".{self.name}") if self.below else host == self.name
        return named and port in self.ports


def rule(entry: str) -> Rule:
    """Takes one entry apart; ValueError says what is wrong with it, and the remedy."""
    found = _ENTRY.fullmatch(entry.strip())
    if found is None:
        raise ValueError(f"{entry!r} is no host: write `name`, `*.name`, or either with `:port`")
    below, name, port, private = bool(found[1]), normal(found[2]), found[3], bool(found[4])
    if not name.isascii():
        raise ValueError(f"{entry!r} is not ASCII: write its `xn--` form")
    if is_address(name):
        raise ValueError(f"{entry!r} is an address: hosts are listed by name")
    if not _NAME.fullmatch(name) or len(name) > 253:
        raise ValueError(f"{entry!r} is no host: write `name`, `*.name`, or either with `:port`")
    if below and "." not in name:
        raise ValueError(f"{entry!r} is too wide: name a domain of at least two labels")
    if private and (below or not port):
        raise ValueError(f"{entry!r}: `private` needs one full name with its port")
    if port and not 0 < int(port) < 65536:
        raise ValueError(f"{entry!r}: the port must be 1 to 65535")
    return Rule(name, below, frozenset({int(port)}) if port else PORTS, private)


def checked(entries: Iterable[str]) -> tuple[str, ...]:
    """The entries, if all can be used; ValueError for the first that cannot."""
    entries = tuple(entries)
    for entry in entries:
        rule(entry)
    return entries


Names = Annotated[tuple[str, ...], AfterValidator(checked)]
"""A config's field: entries that were checked."""


def normal(host: str) -> str:
    """A host's name as it is compared: lower case, without the dot of the root."""
    return host.lower().removesuffix(".")


def is_address(host: str) -> bool:
    """Whether a host is an address, in any writing that a resolver may take for one (`127.1`)."""
    last = normal(host).rpartition(".")[2]
    return ":" in host or host.startswith("[") or last.isdigit() or last.startswith("0x")


def permits(address: str, *, private: bool) -> bool:
    """Whether an address that a listed name resolves to may be reached."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):  # one of version 4 in disguise is judged as such
        if found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        elif found.ipv4_mapped is not None:
            found = found.ipv4_mapped
    refused = _NEVER if private else _NEVER + _NOT_PUBLIC
    return not any(found in network for network in refused)
