"""The rules of the allow-list: which entries can be used, what they allow, which addresses are public."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from air.sandbox.contract import network_rules
from air.sandbox.contract.box import BoxSpec


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 8080, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "example.org.evil.test", 443, False),
        ("Example.ORG.", "example.org", 443, True),
        ("example.org:8080", "example.org", 8080, True),
        ("example.org:8080", "example.org", 443, False),
        ("*.example.org", "a.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "badexample.org", 443, False),
        ("*.example.org:8443", "a.example.org", 8443, True),
        ("host", "host", 80, True),
        ("host:1 private", "host", 1, True),
        ("*", "any.example.org", 443, True),
        ("*", "any.example.org", 8443, False),
    ],
)
def test_an_entry_allows(entry: str, host: str, port: int, allowed: bool) -> None:
    assert network_rules.rule(entry).allows(host, port) is allowed


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("", "is not a host"),
        ("https://example.org", "is not a host"),
        ("example.org/path", "is not a host"),
        ("user@example.org", "is not a host"),
        ("example.org:http", "is not a host"),
        ("a b", "is not a host"),
        ("-a.org", "is not a host"),
        ("a..org", "is not a host"),
        ("a.*.org", "is not a host"),
        ("*:8443", "is not a host"),
        ("* private", "is not a host"),
        ("*.org", "too wide"),
        ("bücher.example", "ASCII"),
        ("1.2.3.4", "is an IP address"),
        ("1.2.3.4:80", "is an IP address"),
        ("127.1", "is an IP address"),
        ("2130706433", "is an IP address"),
        ("0x7f000001", "is an IP address"),
        ("[::1]:80", "is not a host"),
        ("::1", "is not a host"),
        ("example.org:0", "1 to 65535"),
        ("example.org:65536", "1 to 65535"),
        ("example.org private", "needs one full name with its port"),
        ("*.example.org:80 private", "needs one full name with its port"),
    ],
)
def test_an_entry_that_cannot_be_used_says_why(entry: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        network_rules.rule(entry)
    with pytest.raises(ValidationError, match=said):
        BoxSpec(network=(entry,))


def test_a_graders_box_has_no_network() -> None:
    with pytest.raises(ValidationError, match="leave `network` empty"):
        BoxSpec(network=("example.org",), second_user=True)


@pytest.mark.parametrize(
    "host",
    ["1.2.3.4", "1.2.3.4.", "127.1", "0x7f.1", "2130706433", "0x7f000001", "[::1]", "::1", "a.0X1"],
)
def test_addresses_in_any_writing(host: str) -> None:
    assert network_rules.is_address(host)


@pytest.mark.parametrize("host", ["localhost", "1.2.3.4.example.org", "0x.org", "a1", "1a"])
def test_names_are_not_addresses(host: str) -> None:
    assert not network_rules.is_address(host)


PUBLIC = ["1.1.1.1", "8.8.8.8", "2606:4700::1", "::ffff:1.1.1.1", "64:ff9b::101:101"]
PRIVATE = [
    *(
        "127.0.0.1",
        "127.9.9.9",
        "10.0.0.1",
        "172.17.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "198.18.0.1",
    ),
    *("192.0.0.192", "203.0.113.1", "::1", "fd12::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::1", "::7f00:1", "fec0::1", "2001:db8::1"),
    *("64:ff9b:1::1", "4000::1", "100::1"),
]
NEVER = [
    *("169.254.169.254", "169.254.1.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254"),
    *("100.100.100.200", "168.63.129.16", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"),
    *("0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1"),
]


@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE, *NEVER])
def test_which_addresses_may_be_reached(address: str) -> None:
    assert network_rules.permits(address, private=False) is (address in PUBLIC)
    assert network_rules.permits(address, private=True) is (address not in NEVER)
