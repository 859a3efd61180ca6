"""Parses the URLs in the task ids of remote worlds (agents' environments on servers), with settings after
`#`.

An example is `http://HOST:8000/base#split=train&max_turns=20`. `&` separates the settings. Only air reads the
settings; they are not sent to the server as a part of the URL.
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
    """The settings that all remote worlds (agents' environments on servers) share. Users write them after `#`
    in a task id."""

    split: str = ""
    """The split from which tasks are taken. The index of an episode's task is the episode's seed modulo the
    number of tasks in the split. Empty: the server chooses the task."""
    max_turns: int = Field(30, ge=1)
    """The maximum number of turns of an episode."""
    seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    """The time limit of an episode in seconds."""
    timeout: float = Field(600.0, gt=0, allow_inf_nan=False)
    """The time limit of one request, in seconds. A request without a response in this time fails."""
    wait: float = Field(600.0, ge=0, allow_inf_nan=False)
    """The maximum time, in seconds, that an episode waits for a full server to accept it. If the server stays
    full, the episode fails. To find out whether an action ended the server, air waits as long for the server
    to come back, but at most 300 seconds."""
    errors: Literal["probe", "failure", "observation"] = "probe"
    """Who counts as the cause of an error that the server reports for an action. `failure`: the server, and
    the episode is not used. `observation`: the agent, which sees the error's text. `probe`: air repeats the
    episode's actions in another environment of the server, and the agent is the cause if the last action
    fails there in the same way."""
    token_env: str = ""
    """The name of the environment variable that holds the server's access token, which is sent in the headers
    of every request. Empty: no token is sent."""

    def headers(self) -> dict[str, str]:
        """Returns the HTTP headers that carry the token; none if `token_env` is empty. Raises MissingError if
        the environment variable that `token_env` names is not set."""
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
    """Parses `name`, a URL with settings after `#`. Returns two values: the URL without the settings and
    without a final `/ws` or slash, with the scheme http or https; and the settings, as an object of the class
    `options`.

    Raises ConfigError, with `task_id` in its message, if the URL or a setting is malformed.
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
    """Returns a digest (hash) of the URL and of the settings, by which records of episodes identify the task.
    The settings `token_env`, `timeout` and `wait` are left out, because they do not change the episodes."""
    text = f"{url} {options.model_dump_json(exclude={'token_env', 'timeout', 'wait'})}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_loopback(url: str) -> bool:
    """Returns whether the host in a URL is this machine. Requests to such a URL must not use a proxy."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
