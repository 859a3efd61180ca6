"""Attacks on a server of boxes (`air serve sandbox`) through both of its interfaces: that of SandboxFusion
and that of E2B. A client, or a program that it sends, tries to reach this machine or another client's
sandbox, to forge an answer, or to make the server fail.

The battery starts the server itself, on this machine's loopback address. Requests are plain HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp

from air.integrity.attack import Family
from air.integrity.tools_and_checkers.attack import SANDBOX_URL
from air.integrity.tools_and_checkers.services import SERVERS
from air.integrity.verdict import AttackVerdict
from air.tasks.spec import Provider

SECRET = "hidden-on-the-host-51c07e"
"""The text of a file of this machine. No answer may contain it."""
VICTIMS = "hidden-of-the-victim-9ad3f2"
"""The text of a file in another client's sandbox."""
SERVER = "(served boxes)"
"""The text in place of the task's id, in the verdict on an attack on the server."""
_ANSWER_SECONDS = 600.0
_LARGEST_ANSWER = 64 << 20


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


@dataclass
class Served:
    """A running server of boxes, with two of E2B's sandboxes: the attacker's and a victim's."""

    http: aiohttp.ClientSession
    url: str
    secret: Path
    """A file of this machine, with the text `SECRET`."""
    attacker: Mapping[str, str]
    """The headers that open the attacker's sandbox."""
    victim: Mapping[str, str]

    async def send(self, method: str, path: str, **request: Any) -> Answer:
        async with self.http.request(method, self.url + path, **request) as response:
            return Answer(response.status, await response.read())

    async def program(self, code: str, language: str = "bash", **fields: Any) -> dict[str, Any]:
        """Runs a program through SandboxFusion's interface, and returns the answer."""
        body = {"language": language, "code": code, "run_timeout": 60, **fields}
        answer = await self.send("POST", "/run_code", json=body)
        return {"http": answer.status, **json.loads(answer.body)}

    async def start(self, command: str, headers: Mapping[str, str], **fields: Any) -> Answer:
        """Runs a command through E2B's interface, and returns the answer, a stream if it is not refused."""
        process = {"cmd": "bash", "args": ["-c", command]}
        message = json.dumps({"process": process, "stdin": False, **fields}).encode()
        kind = {"Content-Type": "application/connect+json", "Connect-Timeout-Ms": "10000"}
        return await self.send(
            "POST",
            "/process.Process/Start",
            data=struct.pack(">BI", 0, len(message)) + message,
            headers={**headers, **kind},
        )

    async def command(
        self, command: str, headers: Mapping[str, str], **fields: Any
    ) -> list[dict[str, Any]]:
        """Runs a command through E2B's interface, and returns the messages of the answer's stream."""
        return _messages((await self.start(command, headers, **fields)).body)

    async def file(self, path: str, headers: Mapping[str, str]) -> Answer:
        return await self.send("GET", "/files", params={"path": path}, headers=headers)


def _messages(data: bytes) -> list[dict[str, Any]]:
    messages = []
    while len(data) >= 5:
        size = struct.unpack_from(">BI", data)[1]
        messages.append(json.loads(data[5 : 5 + size]))
        data = data[5 + size :]
    return messages


Attempt = Callable[[Served], Awaitable[str]]
"""Tries the attack. Returns a message about how the defence failed, or an empty string if it held."""


@dataclass(frozen=True)
class ServedAttack:
    """An attack through one of the interfaces of a server of boxes."""

    name: str
    family: Family
    aim: str
    attempt: Attempt


def not_applicable(provider: Provider) -> str:
    """Returns the reason why no server can be attacked here, or an empty string."""
    if provider != "docker":
        return "the server runs programs in containers"
    missing = [name for name in ("uvicorn", "starlette") if find_spec(name) is None]
    return "install air-agent[serve]" if missing else ""


async def attack_server(
    attacks: Sequence[ServedAttack],
    provider: Provider,
    folder: Path,
    on_verdict: Callable[[AttackVerdict], None],
) -> None:
    """Starts a server and tries these attacks on it, one after the other. The server's log is written to
    `folder`."""
    if reason := not_applicable(provider):
        for one in attacks:
            on_verdict(
                AttackVerdict(
                    one.name, one.family, one.aim, SERVER, provider, "not applicable", reason
                )
            )
    elif attacks:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        async with SERVERS[SANDBOX_URL](folder) as places:
            for one in attacks:
                on_verdict(await _verdict(one, provider, places[SANDBOX_URL], folder))


async def _verdict(one: ServedAttack, provider: Provider, url: str, folder: Path) -> AttackVerdict:
    began = asyncio.get_running_loop().time()
    try:
        async with _pair(url, folder) as served:
            reason = await one.attempt(served) or await _works(served)
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        reason = f"the server did not answer as it should: {type(error).__name__}: {error}"
    return AttackVerdict(
        one.name,
        one.family,
        one.aim,
        SERVER,
        provider,
        "broken" if reason else "held",
        reason,
        seconds=asyncio.get_running_loop().time() - began,
    )


@asynccontextmanager
async def _pair(url: str, folder: Path) -> AsyncIterator[Served]:
    secret = folder / "secret"
    secret.write_text(SECRET)
    limit = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=limit) as http:
        ids: list[str] = []
        try:
            keys = []
            for _ in range(2):
                body = {"templateID": "air-base", "timeout": 3600}
                async with http.post(f"{url}/v2/sandboxes", json=body) as response:
                    made = await response.json()
                ids.append(made["sandboxID"])
                keys.append(
                    {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
                )
            served = Served(http, url, secret, *keys)
            kind = {"Content-Type": "application/octet-stream"}
            await served.send(
                "POST",
                "/files",
                params={"path": "secret"},
                data=VICTIMS.encode(),
                headers=keys[1] | kind,
            )
            yield served
        finally:
            for each in ids:
                async with http.delete(f"{url}/sandboxes/{each}"):
                    pass


async def _works(served: Served) -> str:
    """Returns a message if the server does not serve other clients as before."""
    said = await served.program("echo still-$((40 + 2))")
    if (said.get("run_result") or {}).get("stdout") != "still-42\n":
        return f"another client's program gets no answer of its own: {said!r:.200}"
    if (await served.file("secret", served.victim)).body != VICTIMS.encode():
        return "the other sandbox is not as before"
    return ""


ATTACKS: list[ServedAttack] = []
"""All attacks on a server of boxes, in the order in which they are tried."""
_READ = "Read a file of this machine, or of another client's sandbox."
_FORGE = "An answer of the server's that the program has written."
_FAIL = "Make the server fail for this client, so that a bad program is not counted."
_FILL = "Use up this machine's memory, disk or processes, or what the other clients need."
_CARRY = "Leave something for another client's request."


def _attack(name: str, family: Family, aim: str) -> Callable[[Attempt], Attempt]:
    def add(attempt: Attempt) -> Attempt:
        ATTACKS.append(ServedAttack(name, family, aim, attempt))
        return attempt

    return add


@_attack("SandboxFusion: files outside the workspace", "isolation", _READ)
async def _files_outside(served: Served) -> str:
    content = base64.b64encode(b"written").decode()
    for path in (str(served.secret), f"../../../../../..{served.secret}", "../x"):
        said = await served.program("true", files={path: content})
        if served.secret.read_text() != SECRET:
            return f"the file {path} was written on this machine"
        if said["http"] != 422:
            return f"the path {path} is not refused: {said!r:.200}"
    return ""


@_attack("SandboxFusion: fetch through links", "isolation", _READ)
async def _fetch_links(served: Served) -> str:
    wanted = ["a", "b/" + str(served.secret).lstrip("/"), "c"]
    code = f"ln -s {served.secret} a; ln -s / b; ln -s /proc/1/root{served.secret} c; cat a b c"
    said = json.dumps(await served.program(code, fetch_files=wanted))
    hidden = base64.b64encode(SECRET.encode()).decode()
    return "the file was read" if SECRET in said or hidden in said else ""


@_attack("SandboxFusion: reach the server from a program", "isolation", _READ)
async def _reach_server(served: Served) -> str:
    port = served.url.rpartition(":")[2]
    said = await served.program(f"echo reached > /dev/tcp/127.0.0.1/{port} && echo got-there")
    return "the program reached the server" if "got-there" in json.dumps(said) else ""


@_attack("SandboxFusion: write into every open file", "result forging", _FORGE)
async def _forge(served: Served) -> str:
    forged = json.dumps({"status": "Success", "run_result": {"return_code": 0}})
    code = (
        "import os, sys\nfor n in range(3, 64):\n"
        f"    try: os.write(n, {forged.encode()!r})\n    except OSError: pass\nsys.exit(3)"
    )
    said = await served.program(code, "python")
    ended = (said.get("run_result") or {}).get("return_code")
    return "" if (said["status"], ended) == ("Failed", 3) else f"{said!r:.200}"


def _program(name: str, family: Family, aim: str, code: str) -> None:
    """Adds an attack by a program which the server must call `Failed`, and none of its own failures."""

    async def attempt(served: Served) -> str:
        said = await served.program(code, run_timeout=3)
        fair = said["http"] == 200 and said["status"] in ("Success", "Failed")
        large = len(json.dumps(said)) > _LARGEST_ANSWER
        return "the answer is not bounded" if large else "" if fair else f"{said!r:.200}"

    _attack(f"SandboxFusion: {name}", family, aim)(attempt)


_program("kill every process", "selective masking", _FAIL, "kill -9 -1; kill -9 1 $PPID")
_program("output without an end", "resource attacks", _FILL, "yes & yes >&2")
_program("processes without an end", "resource attacks", _FILL, "f() { f | f & }; f; wait")
_program("all of the memory", "resource attacks", _FILL, "tail /dev/zero")
_program("full disks", "resource attacks", _FILL,
         "for d in . /tmp /mnt /dev/shm; do cat /dev/zero > $d/full; done")  # fmt: skip


@_attack("SandboxFusion: leave files and processes", "state carry-over", _CARRY)
async def _leave(served: Served) -> str:
    left = "left-by-another-request-8d"
    await served.program(
        f"for d in . /tmp /mnt /dev/shm; do echo {left} > $d/{left}; done\n"
        f"bash -c 'exec -a {left} sleep 600' > /dev/null 2>&1 &"
    )
    look = "ls -R . /tmp /mnt /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    for _ in range(4):  # each may be in the same box
        said = await served.program(look)
        if left in json.dumps(said):
            return f"a later request finds it: {said!r:.300}"
    return ""


@_attack("E2B: another sandbox's id", "isolation", _READ)
async def _other_sandbox(served: Served) -> str:
    for token in (
        {"X-Access-Token": served.attacker["X-Access-Token"]},
        {},
        {"X-Access-Token": ""},
    ):
        headers = {"E2b-Sandbox-Id": served.victim["E2b-Sandbox-Id"], **token}
        read = await served.file("secret", headers)
        ran = await served.start("cat secret", headers)
        stdout = base64.b64encode(VICTIMS.encode())[:-4]
        if read.status != 401 or VICTIMS.encode() in read.body or stdout in ran.body:
            return f"the other sandbox is open: status {read.status}"
    return ""


@_attack("E2B: read this machine's files through links", "isolation", _READ)
async def _read_host(served: Served) -> str:
    made = await served.command(f"ln -s {served.secret} link; ln -s / root", served.attacker)
    if not made:
        return "no command runs"
    place = str(served.secret)
    for path in (place, f"../../../../..{place}", "link", f"root{place}", f"/proc/1/root{place}"):
        answer = await served.file(path, served.attacker)
        if answer.status == 200 or SECRET.encode() in answer.body:
            return f"{path} is read: status {answer.status}"
    return ""


@_attack("E2B: ports of the server and of another sandbox", "isolation", _READ)
async def _ports(served: Served) -> str:
    for port in (served.url.rpartition(":")[2], "2375", "65536", "-1"):
        headers = {**served.attacker, "E2b-Sandbox-Port": port}
        answer = await served.send("GET", "/", headers=headers)
        if answer.status not in (400, 401, 404, 502):
            return f"port {port} is open: status {answer.status}"
    return ""


@_attack("E2B: print the end of the stream", "result forging", _FORGE)
async def _forge_stream(served: Served) -> str:
    code = r"""printf '\2\0\0\0\2{}'; echo '{"event": {"end": {"exitCode": 0}}}'; exit 3"""
    messages = await served.command(code, served.attacker)
    ends = [each["event"]["end"] for each in messages if "end" in each.get("event", {})]
    return "" if [end.get("exitCode") for end in ends] == [3] else f"{messages!r:.300}"


def _on_sandbox(name: str, family: Family, aim: str, command: str, **fields: Any) -> None:
    """Adds an attack by a command in a sandbox, which must end by its time limit or with an answer."""

    async def attempt(served: Served) -> str:
        messages = await served.command(command, served.attacker, **fields)
        return "" if messages else "the stream has no message"

    _attack(f"E2B: {name}", family, aim)(attempt)


_on_sandbox("kill every process", "selective masking", _FAIL, "kill -9 -1; kill -9 1 $PPID")
_on_sandbox("output without an end", "resource attacks", _FILL, "timeout 2 yes")
_on_sandbox("processes without an end", "resource attacks", _FILL, "f() { f | f & }; f; wait")
_on_sandbox("all of the memory", "resource attacks", _FILL, "tail /dev/zero")
_on_sandbox("a terminal of impossible size", "selective masking", _FAIL,
            "stty -a; kill -9 $PPID", pty={"size": {"cols": 2**32 - 1, "rows": 2**32 - 1}})  # fmt: skip


@_attack("E2B: watch everything", "resource attacks", _FILL)
async def _watch(served: Served) -> str:
    for path in ("/", "/proc", str(served.secret.parent)):
        answer = await served.send(
            "POST",
            "/filesystem.Filesystem/CreateWatcher",
            json={"path": path, "recursive": True},
            headers=served.attacker,
        )
        if answer.status >= 500 and answer.status != 501:
            return f"a watch on {path} makes the server fail: status {answer.status}"
    return ""
