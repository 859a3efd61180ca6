"""The agent's search tools in research tasks: they search files for a literal text, or find files by name.

A search with more than 100 results is refused. Hidden files are skipped, and so are binary files in a
search for a text. Symbolic links are not followed.
"""

from __future__ import annotations

from air.tools.workbench.box_files import BoxFiles, TextFile
from air.tools.workbench.file_window import shortened
from air.worlds.base import Refusal

MOST = 100
_LIST_BYTES = 256_000
_GREP = ("grep", "-IFZ")
_VISIBLE = ("--exclude=.?*", "--exclude-dir=.?*")


async def in_folder(files: BoxFiles, text: str, folder: str) -> str:
    """Searches the files below a folder, at any depth, for the literal text `text`. Returns a list, as text,
    of the files that contain it, with the number of matching lines in each. `folder` is an absolute path in
    the box, the isolated place in which the agent works.

    Raises Refusal if there are more than 100 files, and ToolError if the search takes too long.
    """
    recursive = (*_GREP, *_VISIBLE, "-rl")
    result = await files.look(*recursive, "-e", text, ".", at=folder, max_bytes=_LIST_BYTES)
    names = _names(result.stdout, result.truncated, f"files in {folder} hold {text!r}")
    if not names:
        return f"No file in {folder} holds {text!r}."
    counted = await files.look(*_GREP, "-cH", "-e", text, "--", *names, at=folder)
    rows = []
    for row in counted.stdout.decode("utf-8", "replace").splitlines():
        name, _, count = row.partition("\0")
        rows.append(f"{name.removeprefix('./')}: {count} lines")
    return "\n".join([f"{len(names)} files in {folder} hold {text!r}:", *sorted(rows)])


def in_file(file: TextFile, text: str) -> str:
    """Returns a text that lists the lines of a file that contain `text`, with their numbers. Raises Refusal
    if there are more than 100 such lines."""
    hits = file.lines.having(text, MOST + 1)
    if len(hits) > MOST:
        raise Refusal(f"More than {MOST} lines of {file.path} hold {text!r}. Narrow it down.")
    if not hits:
        return f"No line of {file.path} holds {text!r}."
    rows = [f"{n}:{shortened(line)}" for n, line in hits]
    return "\n".join([f"{len(hits)} lines of {file.path} hold {text!r}:", *rows])


async def by_name(files: BoxFiles, name: str, folder: str) -> str:
    """Returns a list, as text, of the files below `folder`, at any depth, whose file name matches the pattern
    `name` (wildcards `*` and `?`). `folder` is an absolute path in the box, the isolated place in which the
    agent works.

    Raises Refusal if there are more than 100 files, and ToolError if the search takes too long.
    """
    hidden = ("-name", ".?*", "-prune", "-o")
    test = ("-type", "f", "-name", name, "-print0")
    result = await files.look("find", ".", *hidden, *test, at=folder, max_bytes=_LIST_BYTES)
    names = _names(result.stdout, result.truncated, f"files in {folder} are named {name!r}")
    if not names:
        return f"No file in {folder} is named {name!r}."
    rows = sorted(name.removeprefix("./") for name in names)
    return "\n".join([f"{len(rows)} files in {folder} are named {name!r}:", *rows])


def _names(listed: bytes, truncated: bool, what: str) -> list[str]:
    """Returns the file names in `listed`, the output of a search program, in which a NUL byte ends each name.

    Raises Refusal if there are more than 100 names or the output was `truncated`. `what` describes the files
    in the error message.
    """
    names = listed.decode("utf-8", "surrogateescape").split("\0")[:-1]
    if truncated or len(names) > MOST:
        raise Refusal(f"More than {MOST} {what}. Narrow it down.")
    return names
