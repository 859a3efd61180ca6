"""The tools `web_page` and `web_search`, with their settings.

A page that cannot be read is an error that the model sees, because the model chose the URL. If a search
service fails on the model's query, air tries a fixed query. If the fixed query succeeds and the model's query
fails again, the query is at fault, and the model sees an error. If the service stays unreachable, this is an
infrastructure error, and the episode is left out of training.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import Field, model_validator

from air import json_lines
from air.errors import ConfigError, InfrastructureError
from air.sandbox.contract.network_rules import Names, rule
from air.tools.base import Reply, Tool, ToolContext, ToolError, tool
from air.tools.load import ToolSettings
from air.tools.web.browser import Browser, Page, WebError
from air.tools.web.page_text import decoded, text_of

_SECONDS = 30.0
_LONGEST_QUERY = 500
_CUT = 300
_TRIES = 3
_PAUSE = 0.5
_PROBE = "weather"
"""The fixed query with which air checks whether a search service works."""


class WebPageSettings(ToolSettings):
    """The settings of the tool `web_page`."""

    hosts: Names = Field(min_length=1)
    """The hosts whose pages may be read, in the syntax of a box's `network`: host names, `*.` and a domain,
    or `*`. Only public IP addresses can be reached, unless an entry ends with `private`."""
    page_length: int = Field(4000, ge=100, le=1_000_000)
    """The maximum number of characters of a page that one call shows."""
    most_bytes: int = Field(2_000_000, ge=1000, le=50_000_000)
    """The maximum number of bytes of a page that are downloaded."""

    def tools(self, folder: Path) -> Sequence[Tool]:
        async def state(context: ToolContext) -> Browser:
            return await Browser(self.hosts).open()

        most = self.page_length + 300

        @tool(state=state, seconds=_SECONDS, max_length=most, replays=False)
        async def web_page(browser: Browser, url: str, start: int = 0) -> Reply:
            """Reads the text of a web page.

            Args:
                url: the address of the page
                start: the first character to show, to go on in a long page
            """
            try:
                page = await browser.get(url, self.most_bytes)
            except WebError as error:
                raise ToolError(str(error)) from None
            text = await asyncio.to_thread(_text, page)
            return Reply(_part(text, start, self.page_length, page), info={"url": page.url})

        return [web_page]


class WebSearchSettings(ToolSettings):
    """The settings of the tool `web_search`, which queries the user's own search service. The service must
    return JSON."""

    url: str
    """The URL of a search at the service, with the placeholder `{query}` for the query, such as
    `https://search.example.org/search?format=json&q={query}`."""
    results: str = "results"
    """The key of the list of results in the response; dots separate the keys of nested objects. A result
    has `title`, `url`, and `content` or `snippet`."""
    top: int = Field(5, ge=1, le=50)
    """The maximum number of results that one call shows."""
    private: bool = False
    """Whether the service may have a non-public IP address, such as an address of this machine."""
    patience: float = Field(20.0, ge=0, le=600)
    """The time, in seconds, for which air waits for a failing service to recover. If the service still fails
    then, the episode ends with an infrastructure error and is left out of training."""
    key_header: str = "Authorization"
    """The name of the HTTP header in which the service expects its API key."""
    key_variable: str = ""
    """The name of the environment variable that holds the API key: the value of the header `key_header`.
    Empty: the service needs no key."""

    @model_validator(mode="after")
    def _address(self) -> WebSearchSettings:
        parts = urlsplit(self.url)
        if "{query}" not in parts.path + parts.query or not parts.hostname:
            raise ValueError("`url` needs a host, and `{query}` in its path or query")
        if parts.scheme not in ("http", "https"):
            raise ValueError("`url` must begin with http:// or https://")
        rule(self._entry())
        return self

    def tools(self, folder: Path) -> Sequence[Tool]:
        entries = [self._entry()]
        headers = self._headers()

        async def state(context: ToolContext) -> Browser:
            return await Browser(entries).open()

        async def ask(browser: Browser, query: str) -> list[Any]:
            url = self.url.replace("{query}", quote(query, safe="", errors="replace"))
            return _results(await browser.get(url, 2_000_000, headers), self.results)

        @tool(state=state, seconds=_SECONDS + self.patience, replays=False)
        async def web_search(browser: Browser, query: str) -> Reply:
            """Searches the web and shows the addresses and first words of pages.

            Args:
                query: a few words about what is wanted
            """
            if not query.strip() or len(query) > _LONGEST_QUERY:
                raise ToolError(f"A query has 1 to {_LONGEST_QUERY} characters.")
            service = functools.partial(ask, browser)
            rows = (await _answer(service, query.strip(), self.patience))[: self.top]
            texts = [_shown(number, row) for number, row in enumerate(rows, start=1)]
            return Reply("\n\n".join(texts) or "Nothing was found.", info={"results": len(rows)})

        return [web_search]

    def _entry(self) -> str:
        parts = urlsplit(self.url)
        port = parts.port or (80 if parts.scheme == "http" else 443)
        return f"{parts.hostname}:{port}{' private' if self.private else ''}"

    def _headers(self) -> dict[str, str]:
        if not self.key_variable:
            return {"Accept": "application/json"}
        key = os.environ.get(self.key_variable)
        if not key:
            message = f"the environment variable {self.key_variable} is not set"
            raise ConfigError(message, where="tool 'web_search'", remedy="set it to the key")
        return {"Accept": "application/json", self.key_header: key}


Ask = Callable[[str], Awaitable[list[Any]]]
"""The type of a function that sends a query to the search service and returns the results. The function
raises WebError if the service does not respond with a list of results."""


async def _answer(ask: Ask, query: str, patience: float) -> list[Any]:
    """Returns the service's results for the model's query. Raises ToolError if the service fails at this
    query twice or more, but answers the fixed query `_PROBE`. Raises InfrastructureError if the service does
    not answer `_PROBE` within `patience` seconds."""
    pause = _pause(patience)
    for _ in range(_TRIES):
        try:
            return await ask(query)
        except WebError as error:
            if not error.server:
                break
        await asyncio.sleep(pause)
    await _probe(ask, patience)
    try:
        return await ask(query)
    except WebError as error:
        problem = "fails at" if error.server else "refuses"
        raise ToolError(f"The search service {problem} this query.") from None


def _pause(patience: float) -> float:
    return min(_PAUSE, patience / 10)


async def _probe(ask: Ask, patience: float) -> None:
    """Sends the fixed query `_PROBE` until the service answers it. Raises InfrastructureError if the service
    does not answer within `patience` seconds. The service gets this time because the model's query may have
    crashed it, and a restart takes time."""
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + patience, _pause(patience)
    while True:
        try:
            await ask(_PROBE)
            return
        except WebError as error:
            if loop.time() >= until:
                raise InfrastructureError(f"the search service: {error}") from None
        await asyncio.sleep(pause)


def _results(page: Page, key: str) -> list[Any]:
    try:
        value: Any = json_lines.decode(page.data)
        for part in key.split("."):
            value = value[part]
    except (ValueError, LookupError, TypeError):
        value = None
    if not isinstance(value, list):
        raise WebError(f"the answer has no list `{key}`", server=True)
    return value


def _shown(number: int, row: Any) -> str:
    fields = row if isinstance(row, dict) else {}
    title, url = str(fields.get("title") or ""), str(fields.get("url") or fields.get("link") or "")
    content = " ".join(str(fields.get("content") or fields.get("snippet") or "").split())
    cut = f"{content[:_CUT]} [… the first {_CUT} of {len(content)} characters]"
    lines = [f"[{number}] {title[:_CUT]}", url[:_CUT], content if len(content) <= _CUT else cut]
    return "\n".join(line for line in lines if line)


def _text(page: Page) -> str:
    text = decoded(page.data, page.charset)
    if page.kind in ("text/html", "application/xhtml+xml"):
        return text_of(text)
    if page.kind.startswith("text/") or page.kind in ("application/json", "application/xml"):
        return text
    raise ToolError(f"The page is no text, but {page.kind[:100] or 'of no stated kind'}.")


def _part(text: str, start: int, most: int, page: Page) -> str:
    if start < 0 or start > len(text):
        raise ToolError(f"The page has {len(text)} characters: start must be from 0 to that.")
    end = min(len(text), start + most)
    more = "" if page.whole else "; the page is longer than what is read of it"
    note = (
        ""
        if (start, end) == (0, len(text)) and page.whole
        else (f"\n[characters {start} to {end} of {len(text)}{more}]")
    )
    return (text[start:end] or "The page has no text.") + note
