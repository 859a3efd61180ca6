"""The agent's search tools, which search files for a text, or find files by name.

A search with more than 100 results is refused. Text is searched for literally, not as a pattern. Hidden files
and folders are skipped, and a search for text also skips binary files. Symbolic links are not followed.
"""

from __future__ import annotations

from air.worlds.base import Refusal
from air.worlds.research.box_files import BoxFiles, TextFile
from air.worlds.research.window import shortened

MOST = 100
_LIST_BYTES = 256_000
_GREP = ("grep", "-IFZ")
_VISIBLE = ("--exclude=.?*", "--exclude-dir=.?*")


async def in_folder(files: BoxFiles, text: str, folder: str) -> str:
    """Searches the files below a folder, and returns a text that lists the files that contain `text`.

    Each line of the result has a file's path and the number of the file's lines that contain `text`.

    Raises:
        Refusal: more than 100 files contain the text, or the search took too long.
    """
    recursive = (*_GREP, *_VISIBLE, "-rl")
    listed = await files.look(*recursive, "-e", text, ".", at=folder, max_bytes=_LIST_BYTES)
    names = _names(listed.stdout, listed.truncated, f"files in {folder} hold {text!r}")
    if not names:
        return f"No file in {folder} holds {text!r}."
    counted = await files.look(*_GREP, "-cH", "-e", text, "--", *names, at=folder)
    rows = []
    for row in counted.stdout.decode("utf-8", "replace").splitlines():
        name, _, count = row.partition("\0")
        rows.append(f"{name.removeprefix('./')}: {count} lines")
    return "\n".join([f"{len(names)} files in {folder} hold {text!r}:", *sorted(rows)])


def in_file(file: TextFile, text: str) -> str:
    """Returns a text with the lines of a file that contain `text`, each with its line number.

    Raises:
        Refusal: more than 100 lines contain the text.
    """
    hits = [(n, line) for n, line in enumerate(file.lines, start=1) if text in line]
    if len(hits) > MOST:
        raise Refusal(f"{len(hits)} lines of {file.path} hold {text!r}. Narrow it down.")
    if not hits:
        return f"No line of {file.path} holds {text!r}."
    rows = [f"{n}:{shortened(line)}" for n, line in hits]
    return "\n".join([f"{len(hits)} lines of {file.path} hold {text!r}:", *rows])


async def by_name(files: BoxFiles, name: str, folder: str) -> str:
    """Searches below a folder, and returns a text that lists the files whose name matches `name`.

    In `name`, `*` and `?` are wildcards.

    Raises:
        Refusal: more than 100 names match, or the search took too long.
    """
    hidden = ("-name", ".?*", "-prune", "-o")
    test = ("-type", "f", "-name", name, "-print0")
    listed = await files.look("find", ".", *hidden, *test, at=folder, max_bytes=_LIST_BYTES)
    names = _names(listed.stdout, listed.truncated, f"files in {folder} are named {name!r}")
    if not names:
        return f"No file in {folder} is named {name!r}."
    rows = sorted(name.removeprefix("./") for name in names)
    return "\n".join([f"{len(rows)} files in {folder} are named {name!r}:", *rows])


def _names(listed: bytes, truncated: bool, what: str) -> list[str]:
    """Returns the file names in the output of a search program, in which a NUL byte ends each name.

    Args:
        listed: the output.
        truncated: whether the output was cut because it was too long.
        what: a description of the search results for the error message.

    Raises:
        Refusal: there are more than 100 names, or the output was cut.
    """
    names = listed.decode("utf-8", "surrogateescape").split("\0")[:-1]
    if truncated or len(names) > MOST:
        raise Refusal(f"More than {MOST} {what}. Narrow it down.")
    return names
