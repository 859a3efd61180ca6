"""What keeps reads, writes and copies inside a box, and inside a folder of the host."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, PROCESS_WORKS, Mutant, as_process, in_docker

_GUEST = "air/sandbox/guest/files.py"
_HOST = "air/sandbox/wire/folders.py"
_ARCHIVE = "air/sandbox/wire/archive.py"
_PYTHON = "tests/docker/test_portable_python.py"
_GOOD = "tests/unit/sandbox/test_archive.py::test_what_comes_out_is_files_and_folders"
_REFUSED = "tests/unit/sandbox/test_archive.py::test_everything_else_is_refused"
_DEFENCES = "tests/unit/sandbox/test_box_defences.py"
_SWAPPED = as_process("a-name-that-is-swapped-while-it-is-read-leads-nowhere")
_OPEN = "flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC"


def _mutant(
    name: str, old: str, new: str, *tests: str, file: str = _GUEST, still: str = PROCESS_WORKS
) -> Mutant:
    return Mutant(name, file, old, new, tests, still)


MUTANTS = (
    _mutant(
        "no folder on the way is a link",
        "_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC",
        *as_process("links-are-not-followed"),
    ),
    _mutant(
        "no link is opened for reading, whenever it got there",
        _OPEN,
        "flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC",
        *_SWAPPED,
    ),
    _mutant(
        "a FIFO holds nothing up, whenever it got there",
        _OPEN,
        "flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC",
        *_SWAPPED,
    ),
    _mutant(
        "what is read is what was looked at",
        "if stat.S_IFMT(opened) != stat.S_IFMT(mode):",
        "if False:",
        *_SWAPPED,
    ),
    _mutant(
        "only regular files and folders are read",
        "if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):",
        "if False:",
        *as_process("only-regular-files-are-opened"),
    ),
    _mutant(
        "a path is made plain before it is walked",
        "path = os.path.normpath(os.path.join(self.roots[0][0], path))",
        "path = os.path.join(self.roots[0][0], path)",
        *as_process("paths-lead-nowhere-else"),
    ),
    _mutant(
        "a folder's name is not the beginning of another's",
        'path.startswith(prefix + "/")',
        "path.startswith(prefix)",
        *as_process("paths-lead-nowhere-else"),
    ),
    _mutant(
        "a file appears whole or not at all",
        'self.temporary = f".air-{os.urandom(8).hex()}"',
        "self.temporary = name\n        flags = _NEW & ~os.O_EXCL | os.O_TRUNC",
        *in_docker("full-disks-are-bounded-and-said"),
        still=DOCKER_WORKS,
    ),
    _mutant(
        "a write that fails leaves nothing",
        "                failed.abandon()",
        "                pass",
        *in_docker("full-disks-are-bounded-and-said"),
        still=DOCKER_WORKS,
    ),
    _mutant(
        "reads are bounded",
        'if left < 0 or os.fstat(fd).st_size > header["max_bytes"]:',
        "if False:",
        *as_process("what-cannot-be-read-says-why"),
    ),
    _mutant(
        "copies are bounded in number and depth",
        "if seen > MAX_ENTRIES or len(parts) > MAX_DEPTH:",
        "if False:",
        *as_process("get-is-bounded"),
    ),
    _mutant(
        "a link of the host is not copied in",
        "kind = path.lstat().st_mode",
        "kind = path.stat().st_mode",
        *as_process("put-takes-no-links-and-writes-through-none"),
        file=_HOST,
    ),
    _mutant(
        "a FIFO of the host is not copied in",
        "if not stat.S_ISREG(kind):",
        "if stat.S_ISLNK(kind):",
        *as_process("put-takes-no-links-and-writes-through-none"),
        file=_HOST,
    ),
    _mutant(
        "what a box answers names no place elsewhere",
        'any(part in ("", ".", "..") for part in parts)',
        'any(part in ("", ".") for part in parts)',
        f"{_DEFENCES}::test_what_a_box_answers_names_no_place_elsewhere[../x]",
        file=_HOST,
    ),
    _mutant(
        "a copy is not written through a link of the host",
        "_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC",
        "_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC",
        f"{_DEFENCES}::test_a_copy_is_not_written_through_a_link",
        file=_HOST,
    ),
    _mutant(
        "a copy is never setuid",
        "return 0o755 if mode & 0o100 else 0o644",
        "return mode",
        f"{_DEFENCES}::test_a_copy_keeps_no_mode_but_whether_it_may_be_executed",
        file=_HOST,
    ),
    _mutant(
        "nothing but files and folders is taken out of an archive",
        "plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()",
        "plain = True",
        _REFUSED,
        file=_ARCHIVE,
        still=_GOOD,
    ),
    _mutant(
        "an archive that comes out of a box is bounded in bytes",
        "                if left < 0:",
        "                if False:",
        _REFUSED,
        file=_ARCHIVE,
        still=_GOOD,
    ),
    _mutant(
        "an archive that comes out of a box is bounded in depth",
        'if len(entries) > MAX_ENTRIES or path.count("/") + 1 > MAX_DEPTH:',
        "if len(entries) > MAX_ENTRIES:",
        _REFUSED,
        file=_ARCHIVE,
        still=_GOOD,
    ),
    _mutant(
        "nobody in a box changes the Python that is mounted in it",
        "(_mount(volume, base, read_only=True),)",
        "(_mount(volume, base, read_only=False),)",
        f"{_PYTHON}::test_commands_neither_change_the_mounted_python_nor_see_it_in_their_environment",
        file="air/sandbox/docker/portable_python.py",
        still=f"{_PYTHON}::test_a_shell_of_an_image_without_bash[busybox]",
    ),
)
