"""What the guest holds to with processes (`air/sandbox/guest/`), and how it is started."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, PROCESS_WORKS, Mutant, as_process, in_docker

_LOOP = "air/sandbox/guest/main.py"
_EXEC = "air/sandbox/guest/processes.py"
_START = "air/sandbox/guest/spawn.py"
_STATS = "air/sandbox/guest/usage.py"
_STATS_TESTS = "tests/unit/sandbox/test_guest_stats.py"
_WIRE = "air/sandbox/wire/connection.py"
_BEATS = "tests/unit/sandbox/test_box_beats.py"
_DOCKER = "tests/docker/test_box_docker.py"
_DEFENCES = "tests/unit/sandbox/test_box_defences.py"
_PROCESS = "tests/unit/sandbox/test_box_process.py"
_TREE = as_process("a-timeout-kills-the-whole-tree")
_KILLED = tuple(
    f"{_PROCESS}::test_sigkill_of_the_harness_leaves_nothing[plain-{attempt}-]"
    for attempt in range(2)
)

MUTANTS = (
    Mutant(
        "nothing in a box can read the guest",
        _LOOP,
        "processes.prctl(processes.PR_SET_DUMPABLE, 0)",
        "pass",
        in_docker("the-guest-cannot-be-read-or-written"),
        DOCKER_WORKS,
    ),
    Mutant(
        "a command is in a process group of its own",
        _START,
        "        os.setsid()\n",
        "",
        as_process("a-signal-to-its-own-group-ends-a-command-alone"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a timeout kills all that descends from a command",
        _LOOP,
        "fresh = self._tree(command) - killed",
        "fresh = {command.pid} - killed",
        _TREE,
        PROCESS_WORKS,
    ),
    Mutant(
        "a timeout kills orphans of the command",
        _EXEC,
        "if ours or (orphan and is_marked(pid, mark, command.ident, strict)):",
        "if ours:",
        _TREE,
        PROCESS_WORKS,
    ),
    Mutant(
        "a timeout kills orphans that dropped their mark",
        _EXEC,
        "in parts or not any(part.startswith(ours) for part in parts)",
        "in parts",
        _TREE,
        PROCESS_WORKS,
    ),
    Mutant(
        "a timeout leaves other commands' orphans alone",
        _EXEC,
        'return ours + b"%d" % ident in parts or',
        "return True or",
        as_process("one-timeout-leaves-other-commands-alone"),
        PROCESS_WORKS,
    ),
    Mutant(
        "orphans come to the guest",
        _LOOP,
        "processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)",
        "pass",
        _TREE,
        PROCESS_WORKS,
    ),
    Mutant(
        "every orphan is reaped",
        _LOOP,
        "os.waitpid(-1, os.WNOHANG)",
        "os.waitpid(next(iter(leaders), self.me), os.WNOHANG)",
        as_process("no-zombies-stay"),
        as_process("stdout-and-stderr-stay-apart-and-bytes-stay-bytes")[0],
    ),
    Mutant(
        "the end of a command is noticed though its output is closed",
        _LOOP,
        "        signal.signal(signal.SIGCHLD, lambda *_: None)\n",
        "",
        as_process("a-command-that-closes-its-output-is-awaited"),
        PROCESS_WORKS,
    ),
    Mutant(
        "output is cut at its cap",
        _EXEC,
        "over = max(0, len(self.tail) - self.tail_cap)",
        "over = 0",
        as_process("output-keeps-head-and-tail"),
        PROCESS_WORKS,
    ),
    Mutant(
        "output that is cut is not kept in memory",
        _EXEC,
        "if len(self.tail) > 2 * self.tail_cap:",
        "if False:",
        (f"{_DEFENCES}::test_output_that_is_cut_is_not_kept_in_memory",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a child that keeps stdout open holds nothing up",
        _LOOP,
        "if command.open and now < command.drain_until:",
        "if command.open:",
        as_process("a-background-child-holds-nothing-up"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command does not inherit the pipes of another",
        _START,
        "        fds += os.pipe2(os.O_CLOEXEC)\n" * 2,
        "        fds += os.pipe2(0)\n" * 2,
        as_process("a-command-gets-nothing-but-its-streams"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command's standard streams are not the guest's",
        _START,
        "        for number, fd in enumerate(streams):\n",
        "        for number, fd in enumerate(streams[:1]):\n",
        as_process("output-is-never-taken-for-an-answer"),
        as_process("the-time-to-live-ends-the-box")[0],
    ),
    Mutant(
        "signals that can be caught do not end the guest",
        _LOOP,
        "            signal.signal(number, signal.SIG_IGN)",
        "            pass",
        (f"{_DEFENCES}::test_signals_that_can_be_caught_do_not_end_the_guest",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command does not inherit what the guest ignores",
        _START,
        "            signal.signal(signal_number, signal.SIG_DFL)",
        "            pass",
        as_process("exit-codes-are-data"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command begins with no signal blocked",
        _LOOP,
        "signal.SIG_SETMASK, []",
        "signal.SIG_BLOCK, []",
        (f"{_BEATS}::test_a_signal_that_the_harness_blocks_no_command_blocks",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command does not wait for all that begin after it",
        _LOOP,
        "FRAMES = 16",
        "FRAMES = 1 << 20",
        (f"{_BEATS}::test_what_is_done_is_answered_while_more_begins",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command that made itself nicer has started",
        _START,
        "except (ProcessLookupError, PermissionError):",
        "except ProcessLookupError:",
        (f"{_DOCKER}::test_a_command_may_be_nicer_by_itself_before_the_guest_sees_to_it",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a command is nicer than its guest, whatever that is",
        _START,
        "os.nice(0) + NICER",
        "NICER",
        (f"{_DOCKER}::test_commands_start_where_the_guest_itself_has_a_low_priority",),
        DOCKER_WORKS,
    ),
    Mutant(
        "what a box uses is not told of another one's control group",
        _STATS,
        "if any(group.limit(name) == most for name, most in limits.items()):",
        "if True:",
        (f"{_STATS_TESTS}::test_a_group_is_a_boxs_own_where_it_holds_it_to_its_limits[podman-v1]",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command is not given another one's environment",
        _START,
        'env = dict(self.env, **header["env"])',
        'env = self.env = dict(self.env, **header["env"])',
        as_process("commands-at-once-have-each-their-own-folder-environment-and-input"),
        as_process("commands-run-at-once")[0],
    ),
    Mutant(
        "a command dies with a guest that is killed",
        _START,
        "prctl(PR_SET_PDEATHSIG, signal.SIGKILL)",
        "pass",
        (f"{_DEFENCES}::test_a_command_dies_with_a_guest_that_is_killed",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a guest ends with its harness though its pipes stay open",
        _LOOP,
        "processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGTERM)",
        "pass",
        (f"{_DEFENCES}::test_a_child_that_keeps_the_pipes_does_not_keep_the_box",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a guest that ends takes everything with it",
        _LOOP,
        "for _ in range(0 if self.me == 1 else 200):",
        "for _ in range(0):",
        (f"{_PROCESS}::test_nothing_is_left[plain]", *_KILLED),
        PROCESS_WORKS,
    ),
    Mutant(
        "a guest that ends removes its folder",
        _LOOP,
        "shutil.rmtree(self.remove, ignore_errors=True)",
        "pass",
        _KILLED,
        PROCESS_WORKS,
    ),
    Mutant(
        "a box that was started and hears nothing ends",
        _WIRE,
        "PATIENCE = 2\n",
        "PATIENCE = 600\n",
        (
            "tests/docker/test_cleanup_boxes.py"
            "::test_a_box_whose_harness_never_speaks_ends_by_itself",
        ),
        DOCKER_WORKS,
    ),
    Mutant(
        "a box that hears its program and no configuration ends",
        _LOOP,
        "select.select([0], [], [], 2.0)",
        "select.select([0], [], [], 600.0)",
        (f"{_DEFENCES}::test_a_guest_that_is_never_configured_ends",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a box ends when its time is over",
        _LOOP,
        "if self.deadline is not None and now >= self.deadline:",
        "if False:",
        as_process("the-time-to-live-ends-the-box"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a timeout kills the command",
        _LOOP,
        "            if now >= command.deadline:",
        "            if False:",
        as_process("a-timeout-returns-what-was-printed"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a command that is cancelled is killed",
        _LOOP,
        "            command.cancelled = True\n            self._kill(command)",
        "            command.cancelled = True",
        as_process("a-cancelled-exec-kills-its-command"),
        PROCESS_WORKS,
    ),
    Mutant(
        "no limit of a process box can be raised again",
        _START,
        "resource.setrlimit(number, (most, most))",
        "resource.setrlimit(number, (most, hard))",
        as_process("a-crash-leaves-no-core"),
        PROCESS_WORKS,
    ),
)
