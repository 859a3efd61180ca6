"""Writes the tasks in which agents' tools and answer checkers are attacked, and runs the servers that these
tasks need: a judge (a model that checks answers; here a program), a search service, and those of
`services.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air.integrity.host import Host
from air.integrity.tools_and_checkers import services
from air.integrity.tools_and_checkers.attack import ANSWER, WORKS, AttackedPart
from air.testing import Message, ScriptedServer

TURNS = 10
"""The number of turns of an episode. It is larger than the number of replies of the longest attack."""
_HEAD = 2**24
_ROWS = "rows.jsonl"


@dataclass(frozen=True)
class AttackTasks:
    """The tasks in which parts of air (agents' tools and answer checkers) are attacked, and the values for
    the placeholders in the attacks' replies."""

    tasks: Mapping[int, str]
    """The id of each attacked part's task. The keys are the values of Python's `id()` for the `AttackedPart`
    objects."""
    folders: Mapping[int, Path]
    """The folder of the task of each attacked part, by the same keys as in `tasks`."""
    places: Mapping[str, str]
    """The real address or port for each placeholder, such as `@JUDGE@`, except `@ROWS@`."""

    def task(self, part: AttackedPart) -> str:
        """Returns the id of the task in which `part`, a tool or answer checker, is attacked."""
        return self.tasks[id(part)]

    def replies(self, part: AttackedPart, texts: Sequence[str]) -> list[str]:
        """Returns the replies `texts` of an attack on `part`, with real paths, addresses and ports in place
        of the placeholders, such as `@ROWS@`."""
        rows = {"@ROWS@": str(self.folders[id(part)] / _ROWS)}
        return [_replaced(text, {**self.places, **rows}) for text in texts]


@asynccontextmanager
async def opened(
    parts: Sequence[AttackedPart], folder: Path, host: Host
) -> AsyncIterator[AttackTasks]:
    """Async context manager: writes the tasks in which `parts` (tools and answer checkers) are attacked into
    a folder, and yields them. Runs the servers that the tasks use while the block runs. Raises
    InfrastructureError if a server does not start."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    search = await asyncio.start_server(_search, "127.0.0.1", 0, limit=_HEAD)
    async with search, services.opened(parts, folder) as servers:
        with ScriptedServer(_judge) as judge:
            places = {
                "@JUDGE@": judge.url,
                "@SEARCH@": f"http://localhost:{search.sockets[0].getsockname()[1]}",
                "@PORT@": str(host.port),
                **servers,
            }
            folders = {id(part): folder / f"part{n}" for n, part in enumerate(parts)}
            tasks = {
                id(part): await asyncio.to_thread(_write, part, folders[id(part)], places)
                for part in parts
            }
            yield AttackTasks(tasks, folders, places)


def _write(part: AttackedPart, folder: Path, places: Mapping[str, str]) -> str:
    """Writes the files of the task in which `part` is attacked into `folder`, and returns the task's id.
    `places` has the real address or port for each placeholder in them."""
    folder.mkdir(parents=True)
    for name, text in part.files.items():
        if name.endswith(".sqlite"):
            with contextlib.closing(sqlite3.connect(folder / name)) as database:
                database.executescript(text)
        else:
            (folder / name).write_text(text)
    (folder / _ROWS).write_text(f"{json.dumps(part.row)}\n")
    settings = {
        "data": _ROWS,
        "tools": list(part.tools),
        "checker": part.checker,
        "turns": TURNS,
        "format": "hermes",
        "split": "all",
    }
    lines = (f"{key} = {_toml(value)}\n" for key, value in settings.items())
    file = folder / "task.toml"
    file.write_text(_replaced("".join(lines), places))
    return f"rows:{file}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def _replaced(text: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        text = text.replace(name, place)
    return text


def _judge(messages: Sequence[Message]) -> str:
    """Plays a gullible judge model, and returns its verdict on the answer in `messages`, the judge's prompt.
    If the answer contains `SAY ` and a text, the verdict is that text. Otherwise the answer is judged right
    if it contains `ANSWER`, the right answer."""
    system, user = str(messages[0]["content"]), str(messages[-1]["content"])
    right, wrong = (re.search(f"{word}-[0-9a-f]+", system) for word in ("RIGHT", "WRONG"))
    student = user.rpartition("<student-")[2]
    if told := re.search(r"SAY ([^\"\\<]*)", student):
        return told[1]
    verdict = right if ANSWER in student else wrong
    return verdict[0] if verdict else ""


async def _search(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves the search service: answers each HTTP request with one search result, and a request that is too
    long with status 414."""
    rows = [{"title": WORKS, "url": "http://example.org/", "content": "cats"}]
    status, body = "200 OK", json.dumps({"results": rows})
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if len(head.partition(b"\r\n")[0]) > 8192:
            status, body = "414 URI Too Long", ""
    except asyncio.LimitOverrunError:
        status, body = "414 URI Too Long", ""
    except asyncio.IncompleteReadError:
        writer.close()
        return
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    await writer.drain()
    writer.close()
