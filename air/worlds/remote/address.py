"""Addresses of remote worlds in task ids: a URL, and settings after `#`.

In `http://HOST:8000/base#split=train&max_turns=20`, `&` separates the settings, which are never sent.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pydantic import Field

from air.config import BaseConfig, validate
from air.errors import ConfigError, MissingError

_WEB = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
OptionsT = TypeVar("OptionsT", bound="RemoteOptions")


class RemoteOptions(BaseConfig):
    """The settings that every remote world has. In its task id they follow `#`."""

    split: str = ""
    """The split whose tasks are played. An episode's seed, modulo the number of tasks, is its task's index.
    Empty: the server chooses."""
    max_turns: int = Field(30, ge=1)
    """The number of turns of an episode."""
    seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The time limit of an episode in seconds."""
    timeout: float = Field(600.0, gt=0, allow_inf_nan=False)
    """Seconds to wait for one answer. After that, the episode has failed."""
    wait: float = Field(600.0, ge=0, allow_inf_nan=False)
    """Seconds to wait for a free place on a server that has none. After that, the episode has failed."""
    errors: Literal["probe", "failure", "observation"] = "probe"
    """The meaning of an error that the server reports in the middle of an episode. `failure`: the server
    failed, and the episode is not used. `observation`: the agent caused the error, and sees its text.
    `probe`: the server gets a harmless request; if it answers, the agent caused the error, otherwise the
    server failed."""
    token_env: str = ""
    """The name of the environment variable with the token that requests carry. Empty: there is no token."""

    def headers(self) -> dict[str, str]:
        """Returns the headers that carry the token. Raises MissingError if its variable is not set."""
        if not self.token_env:
            return {}
        token = os.environ.get(self.token_env)
        if not token:
            raise MissingError(
                "the variable is not set",
                where=self.token_env,
                remedy="put the server's token there",
            )
        return {"Authorization": f"Bearer {token}", "X-API-Key": token}


def parse(task_id: str, name: str, options: type[OptionsT]) -> tuple[str, OptionsT]:
    """Returns the server's URL, with http or https and without a final slash, and the settings behind it.

    Raises ConfigError, which names `task_id`.
    """
    try:
        parts = urlsplit(name)
        valid = parts.scheme in _WEB and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a malformed host or port
        valid = False
    if not valid or re.search(r"[\s\\]", parts.netloc + parts.path):
        raise ConfigError("no URL", where=task_id, remedy="write http://HOST:PORT")
    if parts.query:
        raise ConfigError("a `?` in the URL", where=task_id, remedy="settings come behind `#`")
    if parts.password or parts.username:
        raise ConfigError(
            "a password in the URL would be written into every recorded episode",
            where=task_id,
            remedy="put it into an environment variable, and its name behind the URL: #token_env=NAME",
        )
    try:
        pairs = parse_qsl(parts.fragment, strict_parsing=bool(parts.fragment))
    except ValueError:
        remedy = "write #NAME=VALUE&NAME=VALUE"
        raise ConfigError("malformed settings behind `#`", where=task_id, remedy=remedy) from None
    settings: dict[str, Any] = dict(pairs)
    if len(settings) < len(pairs):
        raise ConfigError("a setting stands twice behind `#`", where=task_id)
    path = parts.path.rstrip("/").removesuffix("/ws").rstrip("/")
    url = urlunsplit((_WEB[parts.scheme], parts.netloc, path, "", ""))
    return url, validate(options, settings, where=task_id)


def digest(url: str, options: RemoteOptions) -> str:
    """Returns a digest of the address and of the settings that decide the episodes."""
    text = f"{url} {options.model_dump_json(exclude={'token_env', 'timeout', 'wait'})}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine, so that requests must not go through a proxy."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
