"""What closes a process box of root's: namespaces, a root of its own, and no privilege.

Not here: that mounts are private. Without it, a machine whose mounts are shared would keep those of
every box that the tests start.
"""

from __future__ import annotations

from tests.mutants import ROOT_WORKS, Mutant, as_root

_GUEST = "air/sandbox/guest/namespaces.py"
_HOST = "air/sandbox/process/namespaces.py"
_TESTS = "tests/unit/sandbox/test_namespaces.py"
_PROCESS = "tests/unit/sandbox/test_box_process.py"
_LEFT = f"{_PROCESS}::test_sigkill_of_the_harness_leaves_nothing"
_HEIR = f"{_LEFT}[root-0-heir]"
_SEEN = f"{_TESTS}::test_nothing_of_the_host_is_seen_but_its_system_and_its_python"
_PRIVILEGES = as_root("nobody-in-it-has-privileges")


def _mutant(name: str, old: str, new: str, *tests: str, file: str = _GUEST) -> Mutant:
    return Mutant(name, file, old, new, tests, ROOT_WORKS, root=True)


MUTANTS = (
    _mutant(
        "a process box has no network",
        "NEW_PROCESSES | NEW_IPC | NEW_HOST_NAME | NEW_NETWORK, ",
        "NEW_PROCESSES | NEW_IPC | NEW_HOST_NAME, ",
        *as_root("there-is-no-network"),
    ),
    _mutant(
        "what is shown of the host is read-only",
        "    _close_to_writing(open_ones)\n",
        "",
        _SEEN,
    ),
    _mutant(
        "nobody in a process box makes a user namespace",
        'os.write(fd, b"0")',
        'os.write(fd, b"9")',
        *_PRIVILEGES,
        *as_root("nobody-makes-namespaces"),
    ),
    _mutant(
        "no capability can be had again in a process box",
        "if number not in keep and _LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0):",
        "if True:",
        *_PRIVILEGES,
    ),
    _mutant(
        "no process of a process box gains privileges",
        "    _prctl(PR_SET_NO_NEW_PRIVS, 1)\n",
        "",
        *_PRIVILEGES,
    ),
    _mutant(
        "the guest of a process box has no capability",
        "if _LIBC.capset(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)):",
        "if False:",
        f"{_TESTS}::test_the_guest_itself_has_no_privileges",
    ),
    _mutant(
        "a process box is in no group of root's",
        "os.setgroups([])",
        "pass",
        f"{_TESTS}::test_no_group_of_roots_comes_along",
    ),
    _mutant(
        "processes of a process box are limited",
        'if config["pids"]:',
        "if False:",
        f"{_TESTS}::test_processes_are_limited_with_one_for_the_guest",
    ),
    _mutant(
        "a guest dies with its launcher",
        "    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has unset it\n",
        "",
        f"{_PROCESS}::test_a_box_whose_process_is_killed_is_dead_and_leaves_nothing[root]",
    ),
    _mutant(
        "a launcher hears of its harness's death though its pipes stay open",
        "    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)\n",
        "",
        _HEIR,
    ),
    _mutant(
        "a launcher that is to end takes its guest along",
        "lambda *_: os.kill(child, signal.SIGKILL)",
        "signal.SIG_IGN",
        _HEIR,
    ),
    _mutant(
        "a launcher removes the box's folder",
        'os.rmdir(config["folder"])',
        "pass",
        f"{_LEFT}[root-0-]",
    ),
    _mutant(
        "shared memory of System V is limited in a process box",
        '("shmall", pages)',
        '("shmmni", 4096)',
        *as_root("shared-memory-does-not-outlive-its-process"),
    ),
    _mutant(
        "the folders of a process box are limited",
        'return f"size={size_mb}m,nr',
        'return f"nr',
        f"{_TESTS}::test_the_size_of_every_folder_holds",
        file=_HOST,
    ),
    _mutant(
        "a process box sees the host's system and nothing else",
        '"/opt", "/nix")',
        '"/opt", "/nix", "/var", "/run", "/home")',
        _SEEN,
        file=_HOST,
    ),
    _mutant(
        "a writable folder does not lie where something of the host is",
        "_ELSEWHERE + folder if taken or covers else folder",
        "folder",
        f"{_TESTS}::test_what_the_host_has_there_moves_a_writable_folder",
        file=_HOST,
    ),
    _mutant(
        "the second user of a process box cannot read the grader's folders",
        '"0700" if closed else "0755"',
        '"0755"',
        *as_root("a-second-user-is-kept-apart"),
        file=_HOST,
    ),
    _mutant(
        "root of a container only has no second user",
        ' and self.mode != "user"',
        "",
        f"{_TESTS}::test_root_of_a_container_only_has_boxes_of_a_user",
        file="air/sandbox/process/box.py",
    ),
)
