"""The checks that the command `air doctor URL` performs: whether a sandbox server responds, and whether it
can run a program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from air import json_lines
from air.errors import AirError, ConfigError
from air.sandbox.ops.doctor import Finding
from air.sandbox.remote.sandbox_fusion import CodeServer
from air.serve.http.settings import HEALTHY

_SECONDS = 20.0
_PROGRAM = "print(6 * 7)"


async def examine(url: str, token: str) -> AsyncIterator[Finding]:
    """Checks whether the sandbox server at `url` responds and can run a program. Yields the result of each
    check as soon as it is known. `token` is the server's token. It is empty if the server has none, or if
    `url` contains it as the password."""
    address = _with_token(url.rstrip("/"), token)
    async with httpx.AsyncClient(timeout=_SECONDS) as client:
        try:
            health = await client.get(f"{address}/health")
        except httpx.HTTPError as error:
            text = str(error) or type(error).__name__
            yield Finding("server", "fail", f"no answer: {text}", "air serve sandbox")
            return
        for finding in _check_health(health):
            yield finding
    yield await _program(address)


def _check_health(response: httpx.Response) -> list[Finding]:
    """Checks a server's response to `/health`, and returns the results. A response that does not come from
    one of air's servers counts as success, because a server of another project can run programs, too; a later
    check tests whether it can."""
    try:
        health = json_lines.decode(response.content)
        if response.status_code == 200 and health["status"] == HEALTHY:
            return _check_health_body(health)
    except (ValueError, TypeError, KeyError):
        pass
    return [Finding("server", "ok", "answers, and is no server of air's")]


def _check_health_body(health: Mapping[str, Any]) -> list[Finding]:
    """Checks `health`, the JSON body of a server's response to `/health`, and returns the results, for
    instance a warning if requests wait for a box (container). Raises KeyError or TypeError if the body does
    not come from a sandbox server of air."""
    if health.keys() == {"status"}:
        return [Finding("server", "ok", "answers, and tells more only with its token")]
    boxes, fusion = health["boxes"], health["sandboxfusion"]
    findings = [Finding("server", "ok", f"air {health['version']}, image {health['image']}")]
    seen = f"{boxes['lent']} of {boxes['max']} in use, {boxes['queued']} requests queue"
    full = boxes["queued"] > 0
    remedy = f"air serve sandbox --max-boxes {2 * boxes['max']}" if full else ""
    findings.append(Finding("boxes", "warn" if full else "ok", seen, remedy))
    kernel = "" if fusion["jupyter"] else "; no Jupyter kernel"
    findings.append(Finding("languages", "ok", ", ".join(fusion["languages"]) + kernel))
    return findings


async def _program(address: str) -> Finding:
    try:
        async with CodeServer(address, attempts=1) as server:
            result = await server.run(_PROGRAM)
    except AirError as error:
        text = str(error)
        refused = "401" in text
        return Finding("program", "fail", text, "export AIR_SERVE_TOKEN=…" if refused else "")
    if not result.succeeded or result.stdout != "42\n":
        return Finding("program", "fail", f"`{_PROGRAM}` gave {result.stdout!r} {result.stderr!r}")
    return Finding("program", "ok", f"`{_PROGRAM}` ran in {result.seconds:.2f} s")


def _with_token(url: str, token: str) -> str:
    """Returns `url` with `token` inserted as the password. Returns `url` unchanged if it has a password
    already, or if `token` is empty. Raises ConfigError if `url` has no host."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ConfigError("not a URL", where=url, remedy="write http://HOST:PORT")
    if not token or parts.password:
        return url
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"air:{quote(token, safe='')}@{place}"))
