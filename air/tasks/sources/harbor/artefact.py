"""Reads a Harbor task's artefact (the files to grade) from the agent's box (sandbox), and writes it into a
fresh grading box.

The files and folders that the task declares as artefacts are read; if the task declares none, the changed
files of the working directory are read instead. `/logs/artifacts` is always read; `/tests`, `/solution` and
`/logs/verifier` never are. While files are read, all processes of the box are frozen, and no program of the
box takes part in reading. A symbolic link is refused if it could lead to the tests in the grading box.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import posixpath
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from air.aio import wait_shielded
from air.errors import ArtefactError, BoxFileError
from air.sandbox.contract.box import MOST_CHANGES, Box
from air.sandbox.contract.entries import BoxFile
from air.tasks.artefact import MOST_FILES
from air.tasks.rules import Artefact
from air.tasks.sources.harbor.commands import ROOT, as_root
from air.tasks.sources.harbor.schema import Artifact

PUBLISHED = "/logs/artifacts"
"""The folder in the agent's box whose files are always part of the artefact (the files to grade), as in
Harbor."""
NEVER = ("/tests", "/solution", "/logs/verifier", "/logs/agent", "/proc", "/sys", "/dev", "/.air")
SYSTEM = (
    *("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/run", "/sbin", "/tmp"),
    *("/usr", "/var"),
)
"""Folders whose changes are not part of the artefact (the files to grade) if the working directory is `/`,
because the programs of the grading box lie in them. A task can still declare these folders as artefacts."""
PROGRAMS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr")
"""Folders with the programs of a container image. A symbolic link in the artefact (the agent's files) may
lead there, such as the link from a virtual environment to its Python."""
_MANIFEST, _FILES = "harbor.json", "files"
_DEPTH = 60
_MOST_SEEN = 500_000
"""The largest number of changed files that the box may report. Changes in system folders such as `/usr` and
`/tmp` (`SYSTEM`) count too, because they are removed from the report only afterwards."""
_AT_ONCE = 32
_AT_A_TIME = 100


@dataclass
class HarborArtefact:
    """The contents of a Harbor task's artefact (what the agent hands in for grading): files by their absolute
    path, links, folders, removed files and permissions."""

    step: int
    """The number, from 0, of the step of the Harbor task to which the artefact (the agent's files)
    belongs."""
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """The target of each symbolic link, by the link's absolute path."""
    folders: list[str] = field(default_factory=list)
    """Absolute paths of the folders. A folder comes before the folders in it."""
    whole_folders: list[str] = field(default_factory=list)
    """Absolute paths of folders that the artefact (the agent's files) contains completely. Each is first
    deleted in the grading box, so that no file of the image remains in it."""
    removed: list[str] = field(default_factory=list)
    """Absolute paths of files and folders of the image that the agent removed. They are deleted in the
    grading box."""
    rights: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """The permission bits, user id and group id of each file and folder, by its absolute path."""

    def artefact(self) -> Artefact:
        """Converts this object to an `Artefact`, the type for the artefacts of all tasks, which contains only
        files: the collected files, and one JSON file with all other fields."""
        about = {
            "step": self.step,
            "links": self.links,
            "folders": self.folders,
            "emptied": self.whole_folders,
            "removed": self.removed,
            "rights": self.rights,
        }
        files = {f"{_FILES}{path}": data for path, data in self.files.items()}
        manifest = json.dumps(about, sort_keys=True, indent=1).encode()
        return Artefact({_MANIFEST: manifest, **files})

    @classmethod
    def of(cls, artefact: Artefact) -> HarborArtefact:
        """Converts an `Artefact` that `HarborArtefact.artefact` made back to a `HarborArtefact`."""
        about = json.loads(artefact.files[_MANIFEST])
        about["whole_folders"] = about.pop("emptied")
        about["rights"] = {path: tuple(rights) for path, rights in about["rights"].items()}
        files = {
            name.removeprefix(_FILES): data
            for name, data in artefact.files.items()
            if name != _MANIFEST
        }
        return cls(files=files, **about)


async def read(
    box: Box,
    declared: Sequence[Artifact],
    *,
    step: int,
    most_bytes: int,
    own_image: bool = False,
) -> Artefact:
    """Reads the artefact (the files to grade) of the task's step numbered `step`, from 0, from the agent's
    box and returns it. `declared` are the artefacts that the task declares; if there are none, the changed
    files of the working directory are read. `own_image`: whether the tests run in another image than the
    agent's. Raises ArtefactError if the artefact has more than `most_bytes` bytes, or an entry that cannot be
    graded, such as a device or a link to hidden files."""
    await box.freeze()
    try:
        collection = _Collection(box, HarborArtefact(step), most_bytes, own_image)
        for artifact in declared:
            await collection.add_declared(artifact)
        if not declared:
            await collection.add_changes()
        await collection.add_declared(Artifact(source=PUBLISHED))
        collection.check_links()
        return collection.contents.artefact()
    except BoxFileError as error:
        raise ArtefactError(f"the artefact cannot be read, or is too large: {error}") from error
    finally:
        await wait_shielded(box.thaw())


@dataclass
class _Collection:
    """Collects an artefact's files and folders from the agent's box into the field `contents`. The total size
    and the number of files are limited."""

    box: Box
    contents: HarborArtefact
    left: int
    """The number of bytes of file contents that may still be added before the artefact (the files to grade)
    is too large."""
    own_image: bool
    """Whether the grading box has another image than the agent's box. Hidden answers may then lie in its
    working directory, so links into that directory are refused."""

    async def add_declared(self, artifact: Artifact) -> None:
        """Adds a file, or a folder with its contents, that the task declares. Does nothing if the path is
        absent."""
        path = posixpath.normpath(posixpath.join(self.box.workspace, artifact.source))
        try:
            entry = await self.box.stat(path, user=ROOT)
        except BoxFileError:
            return
        if entry.kind != "folder" or entry.link:
            await self._add([path])
            return
        if path != PUBLISHED and not artifact.exclude and not _around_hidden(path):
            self.contents.whole_folders.append(path)
        inside = await self.box.list(path, depth=_DEPTH, user=ROOT)
        kept = [one for one in inside if not _excluded(one.path, path, artifact.exclude)]
        await self._add([path, *(one.path for one in kept)])

    async def add_changes(self) -> None:
        """Adds the files of the working directory that differ from the image's files, and records the image's
        files that the agent removed."""
        outside = SYSTEM if self.box.workspace == "/" else ()
        there, absent = [], []
        for change in await self.box.changed(most=_MOST_SEEN):
            if _below(change.path, (*outside, *NEVER)):
                continue
            if change.kind == "deleted":
                self.contents.removed.append(change.path)
                absent.append(change.path)  # it may exist again
            else:
                there.append(change.path)
        await self._add(there)
        await self._add(absent, absent=True)

    async def _add(self, paths: Iterable[str], *, absent: bool = False) -> None:
        """Adds the files and folders at `paths`, but not what is in the folders. Reads all of them in one
        call to the box. `absent`: whether some paths are allowed to be missing; otherwise a missing path
        raises ArtefactError."""
        wanted = [
            path for path in paths if not _below(path, NEVER) and path not in self.contents.files
        ]
        entries = await self.box.gather(
            wanted, tree=False, max_bytes=self.left, max_entries=MOST_CHANGES, user=ROOT
        )
        if not absent and len(entries) < len(wanted):
            missing = min(set(wanted) - {entry.path for entry in entries})
            raise ArtefactError(f"{missing!r} cannot be read")
        for entry in entries:
            self._add_one(entry)

    def _add_one(self, entry: BoxFile) -> None:
        if entry.kind == "link":
            self.contents.links[entry.path] = entry.link
            return
        if entry.kind == "other":
            raise ArtefactError(f"{entry.path} is neither a file nor a folder nor a link")
        self.contents.rights[entry.path] = (entry.mode & 0o777, entry.uid, entry.gid)
        if entry.kind == "folder":
            self.contents.folders.append(entry.path)
            return
        if len(self.contents.files) >= MOST_FILES:
            raise ArtefactError(f"it has more than {MOST_FILES} files")
        self.left -= len(entry.data)
        self.contents.files[entry.path] = entry.data

    def check_links(self) -> None:
        """Raises ArtefactError if a collected link could lead to the tests or other hidden files of a grading
        box."""
        for path, target in self.contents.links.items():
            if not self._is_harmless(path, target):
                raise ArtefactError(
                    f"{path} is a link to {target[:200]}, which is not handed in: put a copy there"
                )

    def _is_harmless(self, path: str, target: str) -> bool:
        """Whether a symbolic link cannot lead to hidden files of the grading box: `target`, to which the link
        at `path` points, is a collected file or folder, or lies in a folder in `PROGRAMS` or in the working
        directory (unless `own_image`)."""
        # `..` after another component means the parent of what that component leads to, not of its path.
        parts = [part for part in target.split("/") if part not in ("", ".")]
        ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
        if ".." in parts[ups:]:
            return False
        end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if _below(end, NEVER) or _around_hidden(end):
            return False
        contents, workspace = self.contents, self.box.workspace
        if end in contents.files or end in contents.folders or end in contents.links:
            return True
        if (
            _below(end, PROGRAMS)
            or _below(end, contents.whole_folders)
            or _below(end, contents.links)
        ):
            return True  # a link on this path is handed in too, so its own target is checked
        return not self.own_image and (workspace == "/" or _below(end, [workspace]))


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _around_hidden(path: str) -> bool:
    """Whether the folder `path` is, or contains, one of the folders whose files are never part of an artefact
    (the agent's files to grade), such as `/tests`. True, for example, for `/` and `/logs`."""
    return path == "/" or any(_below(never, [path]) for never in NEVER)


def _excluded(path: str, root: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns, in the syntax of tar's `--exclude`, matches a path below `root`. A pattern
    matches any sequence of complete path components; everything below a match is excluded, too."""
    parts = path.removeprefix(f"{root.rstrip('/')}/").split("/")
    for end in range(1, len(parts) + 1):
        for start in range(end):
            inner = "/".join(parts[start:end])
            if any(fnmatch.fnmatchcase(inner, pattern.rstrip("/")) for pattern in patterns):
                return True
    return False


async def lay_out(box: Box, artefact: Artefact) -> None:
    """Writes the files, links and permissions of an artefact (the agent's files) into a fresh box, in which
    no process of the agent has run, and deletes there what the agent removed. Raises BoxFileError if the
    artefact does not fit into the box."""
    contents = HarborArtefact.of(artefact)
    await _script(box, _clearing(contents))
    entries = list(contents.files.items())
    for start in range(0, len(entries), _AT_ONCE):
        await asyncio.gather(
            *(box.write(path, data, user=ROOT) for path, data in entries[start : start + _AT_ONCE])
        )
    await _script(box, _finishing(contents))


def _clearing(contents: HarborArtefact) -> list[str]:
    lines = [f"rm -rf -- {some}" for some in _batches((*contents.removed, *contents.whole_folders))]
    for path in map(shlex.quote, contents.folders):
        lines.append(f"if [ -L {path} ] || [ ! -d {path} ]; then rm -rf -- {path}; fi")
        lines.append(f"mkdir -p -- {path}")
    lines += [f"rm -rf -- {some}" for some in _batches((*contents.files, *contents.links))]
    return lines


def _batches(paths: Sequence[str]) -> list[str]:
    """Joins the paths, quoted for a shell and separated by spaces, to strings of at most a hundred paths
    each. So one shell command can handle a hundred paths, which is much faster than a command for each
    path."""
    return [
        " ".join(map(shlex.quote, paths[start : start + _AT_A_TIME]))
        for start in range(0, len(paths), _AT_A_TIME)
    ]


def _finishing(contents: HarborArtefact) -> list[str]:
    lines = []
    for path, target in contents.links.items():
        quoted = shlex.quote(path)
        lines.append(f"mkdir -p -- {shlex.quote(posixpath.dirname(path))}")
        lines.append(f"ln -s -- {shlex.quote(target)} {quoted}")
    alike: dict[tuple[int, int, int], list[str]] = {}
    for path, rights in contents.rights.items():
        alike.setdefault(rights, []).append(path)
    for (mode, uid, gid), paths in alike.items():
        for some in _batches(paths):
            lines += [f"chown {uid}:{gid} -- {some}", f"chmod {mode:o} -- {some}"]
    return lines


async def _script(box: Box, lines: Sequence[str]) -> None:
    if not lines:
        return
    name = "/.air-artefact.sh"
    await box.write(
        name, "\n".join(["set -e", *lines, ""]).encode(errors="surrogateescape"), user=ROOT
    )
    await as_root(box, f"sh {name}", what="laying out the artefact in a grading box")
    await box.remove(name, user=ROOT)


def untouched(step: int) -> Artefact:
    """Returns the artefact (the files to grade) of an agent that did nothing in the task's step numbered
    `step`: it has no files and removes none."""
    return HarborArtefact(step).artefact()


def step_of(artefact: Artefact) -> int:
    """Returns the number, from 0, of the task's step to which an artefact (the agent's files) belongs."""
    return int(json.loads(artefact.files[_MANIFEST])["step"])
