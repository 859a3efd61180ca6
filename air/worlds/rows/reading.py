"""Reads a user's dataset, the rows of a JSON, JSON Lines or Parquet file, and checks the fields that every
row needs.

A row is an object with arbitrary fields. It must contain a question: a string in the field `question`, or a
conversation in the field `messages` (`[{"role": …, "content": …}]`) whose last message is the user's.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from air import json_lines
from air.errors import ConfigError, MissingError

QUESTION, ANSWER, MESSAGES = "question", "answer", "messages"
LONGEST_QUESTION = 20_000
"""The maximum length of a question in characters. It is that of an observation, because the agent sees the
question as one."""
_ROLES = {"system": "System", "user": "User", "assistant": "Assistant"}
_SHOWN = 60


@dataclass(frozen=True)
class Row:
    """One row of a dataset's file: a question with further fields, such as the answer."""

    where: str
    """The row's location for error messages: `FILE:LINE` (from 1) in JSON Lines, `FILE[INDEX]` (from 0) in
    JSON and Parquet."""
    question: str
    """The question for the agent, as text."""
    fields: Mapping[str, Any]
    """All fields of the row, with the values in the file."""

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 hash of the question, in hex. Questions that differ only in case and spaces have the
        same hash."""
        text = " ".join(self.question.casefold().split())
        return hashlib.sha256(text.encode()).hexdigest()

    def field(self, name: str) -> Any:
        """Returns the value of a field. Raises ConfigError if the row has no field with this name."""
        if name not in self.fields:
            known = ", ".join(f"`{key}`" for key in self.fields)
            raise ConfigError(
                f"the row has no field `{name}`", where=self.where, remedy=f"it has {known:.300}"
            )
        return self.fields[name]


@dataclass(frozen=True)
class RowFile:
    """The rows of a dataset's file, and a digest of the file."""

    path: Path
    rows: tuple[Row, ...]
    digest: str
    """A hash of the file's bytes."""


def read(path: Path) -> RowFile:
    """Reads the rows of a file, whose name must end with `.json`, `.jsonl` or `.parquet`. The rows of an
    unchanged file are cached. Raises MissingError if the file or a needed package is absent, and ConfigError
    if the file or a row is malformed."""
    if path.suffix not in READERS:
        known = ", ".join(READERS)
        raise ConfigError(
            "no file of rows", where=str(path), remedy=f"its name must end in {known}"
        )
    try:
        status = path.stat()
    except OSError:
        raise MissingError("no such file", where=str(path), remedy="check the path") from None
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=32)
def _read(path: Path, _modified: int, _size: int) -> RowFile:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    rows = tuple(_row(where, value) for where, value in READERS[path.suffix](path, data))
    if not rows:
        raise ConfigError("has no rows", where=str(path), remedy="add rows")
    return RowFile(path, rows, hashlib.sha256(data).hexdigest())


def _json(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    try:
        values = json_lines.decode(_text(path, data))
    except ValueError as error:
        raise ConfigError(
            f"not JSON: {error}", where=str(path), remedy="write a list of objects"
        ) from None
    if not isinstance(values, list):
        remedy = "write a list of objects, or one object a line in a .jsonl file"
        raise ConfigError("holds no list", where=str(path), remedy=remedy)
    for number, value in enumerate(values):
        yield f"{path}[{number}]", value


def _json_lines(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_text(path, data).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json_lines.decode(line)
        except ValueError as error:
            remedy = "write one JSON object a line"
            raise ConfigError(f"not JSON: {error}", where=where, remedy=remedy) from None
        yield where, value


def _parquet(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingError(
            "reading Parquet needs the package pyarrow",
            where=str(path),
            remedy="pip install 'air-agent[tools]', or convert the file to JSON lines",
        ) from None
    try:
        values = parquet.read_table(pyarrow.BufferReader(data)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        text = str(error).split("\n")[0]
        raise ConfigError(
            f"not Parquet: {text}", where=str(path), remedy="check the file"
        ) from None
    for number, value in enumerate(values):
        # A column is in every row; JSON would leave an absent value out.
        yield f"{path}[{number}]", {key: one for key, one in value.items() if one is not None}


READERS: Mapping[str, Callable[[Path, bytes], Iterator[tuple[str, Any]]]] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
"""The parsers of files, by the ending of the file's name. A parser takes a file's path and bytes, and yields
for each row a pair: its location, for error messages, and its value."""


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: {error}", where=str(path)) from None


def _row(where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise ConfigError(
            f"a row must be an object, not {_shown(value)}",
            where=where,
            remedy='write {"question": …, "answer": …}',
        )
    if (QUESTION in value) == (MESSAGES in value):
        fault = "both `question` and `messages`" if QUESTION in value else "no `question`"
        raise ConfigError(
            f"the row has {fault}",
            where=where,
            remedy="give each row a text `question`, or a conversation `messages`",
        )
    if QUESTION in value:
        question = value[QUESTION]
        if not isinstance(question, str) or not question.strip():
            raise _wrong(where, QUESTION, "must be a text that is not empty", question)
    else:
        question = _conversation(where, value[MESSAGES])
    if len(question) > LONGEST_QUESTION:
        raise ConfigError(
            f"the question has {len(question)} characters, more than {LONGEST_QUESTION}",
            where=where,
            remedy="shorten or remove the row",
        )
    return Row(where, _encodable(question), value)


def _conversation(where: str, messages: Any) -> str:
    """Converts a conversation, a list of chat messages, to one text: the text of its only message or, with
    several messages, all texts, each after its role. `where` is the row's location, for error messages.
    Raises ConfigError if the conversation is malformed or the last message is not the user's."""
    if not isinstance(messages, list) or not messages:
        raise _wrong(where, MESSAGES, "must be a list of messages", messages)
    told = []
    for number, message in enumerate(messages):
        key = f"{MESSAGES}.{number}"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise _wrong(where, key, f'needs a "role": {", ".join(_ROLES)}', message)
        told.append((str(message["role"]), _content(where, f"{key}.content", message)))
    if told[-1][0] != "user":
        # Messages after the user's last one often have the answer, which no agent may see.
        raise _wrong(where, f"{MESSAGES}.{len(told) - 1}.role", "must be `user`", told[-1][0])
    if len(told) == 1:
        return told[0][1]
    return "\n\n".join(f"{_ROLES[role]}: {text}" for role, text in told)


def _content(where: str, key: str, message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts: Sequence[Any] = content
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
            raise _wrong(where, key, "may have only parts of the type `text`", content)
        content = "\n".join(str(part.get("text", "")) for part in parts)
    if not isinstance(content, str) or not content.strip():
        raise _wrong(where, key, "must be a text that is not empty", content)
    return content


def _wrong(where: str, key: str, rule: str, value: Any) -> ConfigError:
    return ConfigError(
        f"`{key}` {rule}, got {_shown(value)}", where=where, remedy="correct or remove the row"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _encodable(text: str) -> str:
    """Returns a string with lone surrogates replaced by `?`, because UTF-8 cannot encode surrogates."""
    return text.encode("utf-8", "replace").decode()
