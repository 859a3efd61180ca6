"""Tables of headers: the requests that a server without a token takes for those of another site's pages."""

from __future__ import annotations

import pytest

from air.origin_check import foreign_host, foreign_origin, foreign_page, is_loopback

BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"

ORIGINS: list[tuple[str | None, bool]] = [
    (None, True),  # a program
    ("http://localhost:8080", True),
    ("http://localhost:9", True),  # another port of this machine
    ("https://localhost", True),  # another scheme
    ("http://LOCALHOST:8080", True),
    ("HTTP://127.0.0.1", True),
    ("http://127.9.9.9", True),
    ("http://[::1]:8080", True),
    ("null", False),  # a sandboxed frame, or a file
    ("", False),
    ("localhost", False),  # no scheme
    ("file://", False),
    ("http://0.0.0.0:8080", False),  # every address, which is no loopback address
    ("http://[::]:8080", False),
    ("http://192.168.0.1", False),
    ("https://example.com", False),
    ("http://localhost.example.com", False),
    ("http://127.0.0.1.example.com", False),
    ("http://localhost@example.com", False),  # `localhost` is the user's name
    ("http://a.localhost", False),  # a name in `Host` may be below localhost, an origin may not
    ("http://2130706433", False),  # 127.0.0.1 as one number, which browsers write as 127.0.0.1
    ("http://[::1", False),
]


@pytest.mark.parametrize(("origin", "allowed"), ORIGINS)
def test_an_origin_is_a_page_of_this_machine(origin: str | None, allowed: bool) -> None:
    problem = foreign_origin(origin)
    assert (problem == "") == allowed
    assert allowed or f"the Origin {origin!r} is" in problem


HOSTS = [
    ("localhost", True),
    ("LOCALHOST:8080", True),
    ("localhost.", True),  # the root of DNS
    ("8080-id.localhost", True),
    ("127.0.0.1:9", True),
    ("[::1]:8080", True),
    ("", False),
    ("0.0.0.0", False),
    ("0.0.0.0:8080", False),
    ("[::]:8080", False),
    ("[::1", False),
    ("10.0.0.1", False),
    ("example.com", False),
    ("localhost.example.com", False),
    ("notlocalhost", False),
]


@pytest.mark.parametrize(("host", "allowed"), HOSTS)
def test_a_host_names_this_machine(host: str, allowed: bool) -> None:
    problem = foreign_host([host])
    assert (problem == "") == allowed
    assert allowed or f"the Host {host!r} is not this machine's" in problem
    assert foreign_host(["localhost", host]) == problem  # each of several headers counts


def test_further_domains_are_the_servers_own() -> None:
    assert foreign_host([]) == ""
    assert foreign_host(["0.0.0.0:8080"], ["0.0.0.0"]) == ""
    for host in ("box.example.com:8080", "a.BOX.example.com"):
        assert foreign_host([host], ["box.example.com"]) == ""
    for host in ("example.com", "abox.example.com", "box.example.com.org"):
        assert foreign_host([host], ["box.example.com"]) != ""


PAGES: list[tuple[str | None, str | None, bool]] = [
    (None, None, True),
    (None, "python-requests/2.32", True),
    (None, BROWSER, False),  # an old browser, or an address like 0.0.0.0
    (None, BROWSER.lower(), True),  # a page cannot change this header
    ("none", BROWSER, True),  # typed into the address bar
    ("same-origin", BROWSER, True),
    ("same-site", BROWSER, False),  # another port of this machine
    ("cross-site", BROWSER, False),
    ("cross-site", None, False),  # whatever the other header says
    ("same-site", "python-requests/2.32", False),
    ("None", BROWSER, False),  # browsers write it in lower case
    ("", None, False),
    ("new-value", BROWSER, False),
]


@pytest.mark.parametrize(("site", "agent", "allowed"), PAGES)
def test_a_page_may_cause_an_effect(site: str | None, agent: str | None, allowed: bool) -> None:
    problem = foreign_page(site, agent)
    assert (problem == "") == allowed
    assert allowed or "a web page of another site or port" in problem


def test_a_loopback_address() -> None:
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"):
        assert is_loopback(host), host
    for host in ("", "0.0.0.0", "::", "example.com", "a.localhost", "128.0.0.1"):
        assert not is_loopback(host), host
