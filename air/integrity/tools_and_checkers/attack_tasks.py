"""Writes the tasks of attacks on tools and checkers, and runs the services that they need: a judge and a
search service."""

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
from air.integrity.tools_and_checkers.attack import ANSWER, WORKS, AttackedPart
from air.testing import Message, ScriptedServer

TURNS = 10
"""The number of turns of an episode. It is larger than the number of replies of the longest attack."""
_HEAD = 2**24
_ROWS = "rows.jsonl"


@dataclass(frozen=True)
class AttackTasks:
    """The tasks in which attacks on tools and checkers are played, and the paths, addresses and ports in
    the attacks' texts."""

    tasks: Mapping[int, str]
    """The id of each part's task. The keys are the values of Python's `id()` for the `AttackedPart`
    objects."""
    folders: Mapping[int, Path]
    """The folder of each part's task. The keys are those of `tasks`."""
    places: Mapping[str, str]
    """The real address or port of each placeholder except `@ROWS@`, such as `@JUDGE@`."""

    def task(self, part: AttackedPart) -> str:
        """Returns the id of the task in which a part is attacked."""
        return self.tasks[id(part)]

    def replies(self, part: AttackedPart, texts: Sequence[str]) -> list[str]:
        """Returns the model's replies `texts` with real paths, addresses and ports in place of the names
        `@ROWS@`, `@JUDGE@`, `@SEARCH@` and `@PORT@`."""
        rows = {"@ROWS@": str(self.folders[id(part)] / _ROWS)}
        return [_replaced(text, {**self.places, **rows}) for text in texts]


@asynccontextmanager
async def opened(
    parts: Sequence[AttackedPart], folder: Path, host: Host
) -> AsyncIterator[AttackTasks]:
    """Async context manager: writes the tasks of the parts into a folder, and runs the judge and the search
    service while the block runs."""
    search = await asyncio.start_server(_search, "127.0.0.1", 0, limit=_HEAD)
    async with search:
        with ScriptedServer(_judge) as judge:
            places = {
                "@JUDGE@": judge.url,
                "@SEARCH@": f"http://localhost:{search.sockets[0].getsockname()[1]}",
                "@PORT@": str(host.port),
            }
            folders = {id(part): folder / f"part{n}" for n, part in enumerate(parts)}
            tasks = {
                id(part): await asyncio.to_thread(_write, part, folders[id(part)], places)
                for part in parts
            }
            yield AttackTasks(tasks, folders, places)


def _write(part: AttackedPart, folder: Path, places: Mapping[str, str]) -> str:
    """Writes the files of the task in which a part is attacked, with the real paths, addresses and ports of
    `places` instead of placeholders; returns the task's id."""
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
    """Returns the verdict of a gullible judge model: the text that the judged answer tells the judge to say.
    If the answer contains no such text, the verdict is whether it contains `ANSWER`."""
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
