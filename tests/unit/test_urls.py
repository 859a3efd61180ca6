"""Which texts are taken for the URLs of servers."""

from __future__ import annotations

import pytest

from air.errors import ConfigError
from air.sandbox.remote.sandbox_fusion import base_url
from air.train.config.further_models_config import TeacherConfig
from air.urls import is_server

SERVERS = (
    "http://127.0.0.1:8000",
    "https://example.com/v1/",
    "http://[::1]:65535",
    "http://localhost",
    "http://name:word@host:1/path",
)
OTHERS = (
    "",
    "host:80",
    "ftp://host",
    "http://",
    "http:///v1",
    "http://[::1",
    "http://host:x",
    "http://host:0",
    "http://host:65536",
    "http://host:99999",
    "http://999.1.1.1",
    "http://a b",
    "http://host/a b",
    "http://host\n",
    "http://host\\path",
    "http://host?x=1",
    "http://host#part",
    "http://\ud800",
)


@pytest.mark.parametrize("url", SERVERS)
def test_the_url_of_a_server(url: str) -> None:
    assert is_server(url)


@pytest.mark.parametrize("url", OTHERS)
def test_a_text_that_is_no_url_of_a_server(url: str) -> None:
    assert not is_server(url)


def test_settings_with_urls_refuse_others() -> None:
    for url in ("http://[::1", "http://host:99999"):
        with pytest.raises(ConfigError, match="is not the URL of a server"):
            base_url(url)
        with pytest.raises(ValueError, match="URL"):
            TeacherConfig(name="teacher", base_url=url)
