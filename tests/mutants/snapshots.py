"""What frozen workspaces and their keeper hold to, and what notices an end that is silent or away."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, PROCESS_WORKS, Mutant, in_docker

_KEEPER = "air/sandbox/guest/snapshots.py"
_HOST = "air/sandbox/docker/snapshot_service.py"
_LOOP = "air/sandbox/guest/main.py"
_BOX = "air/sandbox/wire/guest_box.py"
_WIRE = "air/sandbox/wire/connection.py"
_TESTS = "tests/docker/test_snapshots.py"
_BEATS = "tests/unit/sandbox/test_box_beats.py"
_CHAOS = "tests/docker/test_chaos.py"
_DEFENCES = "tests/unit/sandbox/test_box_defences.py"
_GIVEN_BACK = f"{_TESTS}::test_what_a_keeper_mounts_is_given_back"

_SNAPSHOTS = (
    Mutant(
        "a fork's own writes are limited",
        _KEEPER,
        "size={header['disk_mb']}m,",
        "size={8 * header['disk_mb']}m,",
        in_docker("a-forks-own-writes-are-bounded"),
        DOCKER_WORKS,
    ),
    Mutant(
        "a fork's own files are limited",
        _KEEPER,
        "nr_inodes={header['inodes']},",
        "",
        (f"{_TESTS}::test_a_fork_takes_as_many_files_as_a_box_and_no_setuid_program",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a fork takes no setuid program and no device",
        _KEEPER,
        "_FLAGS = _MS_NOSUID | _MS_NODEV",
        "_FLAGS = 0",
        (f"{_TESTS}::test_a_fork_takes_as_many_files_as_a_box_and_no_setuid_program",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a frozen workspace that nobody has any more is given back",
        _KEEPER,
        "if not self.users[layer]:",
        "if False:",
        (_GIVEN_BACK,),
        DOCKER_WORKS,
    ),
    Mutant(
        "a box that is gone keeps no fork",
        "air/sandbox/docker/box.py",
        "await self._keeper.drop(self.id)",
        "pass",
        (_GIVEN_BACK,),
        DOCKER_WORKS,
    ),
    Mutant(
        "a keeper ends with the last who needs it",
        _HOST,
        "        if not self._holders:\n",
        "        if False:\n",
        (f"{_TESTS}::test_a_pool_lends_forks_and_the_keeper_ends_with_the_last_of_them",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a snapshot is given up once",
        _HOST,
        "        if not self._closed:\n",
        "        if True:\n",
        (f"{_TESTS}::test_a_snapshot_that_is_closed_twice_takes_nothing_from_another",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a keeper enters no process but the box's own",
        _KEEPER,
        'place in _ENGINES_FILES and container in source.split("/")',
        "True",
        (f"{_TESTS}::test_a_keeper_enters_no_process_but_the_boxs_own",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a box whose snapshot fails is closed",
        _BOX,
        'self._end(f"its snapshot failed: {error or type(error).__name__}")',
        "pass",
        (f"{_TESTS}::test_a_snapshot_that_fails_closes_its_box",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a keeper that is dead is not asked",
        _HOST,
        "if found is None or not found.alive:",
        "if found is None:",
        (f"{_TESTS}::test_a_keeper_that_dies_loses_its_snapshots_and_nothing_else",),
        DOCKER_WORKS,
    ),
    Mutant(
        "a freeze ends every process",
        _LOOP,
        "tree = self._tree() if self.me != 1 else set(processes.processes()) - {1}",
        "tree: set[int] = set()",
        (f"{_DEFENCES}::test_a_freeze_ends_every_process",),
        PROCESS_WORKS,
    ),
    Mutant(
        "nothing begins in a frozen box",
        _LOOP,
        "        self.frozen = True\n",
        "        self.frozen = False\n",
        ("tests/unit/sandbox/test_box_defences.py::test_nothing_begins_in_a_frozen_box",),
        PROCESS_WORKS,
    ),
)
_SILENCE = (
    Mutant(
        "a guest that hears nothing ends",
        _LOOP,
        "if now >= self.heard + self.silence:",
        "if False:",
        (f"{_BEATS}::test_a_guest_that_hears_nothing_ends_with_its_commands",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a guest answers a beat",
        _LOOP,
        'self.send({"op": "beat"})',
        "pass",
        (f"{_BEATS}::test_beats_keep_an_idle_guest_alive",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a host lets an idle guest hear of it",
        _WIRE,
        'self.post({"op": "beat", "id": 0})',
        "pass",
        (f"{_BEATS}::test_beats_keep_an_idle_guest_alive",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a guest that is silent is given up",
        _WIRE,
        "if self._unheard >= BEATS_MISSED:",
        "if False:",
        (f"{_BEATS}::test_a_silent_guest_is_given_up",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a start waits for an engine that is being restarted",
        "air/sandbox/pool/start_retry.py",
        "if state.outcome and isinstance(state.outcome.exception(), EngineAwayError):",
        "if False:",
        (f"{_CHAOS}::test_a_lease_waits_for_an_engine_that_is_restarted",),
        DOCKER_WORKS,
    ),
    Mutant(
        "an engine that ends does not wait for guests",
        "air/sandbox/docker/container_spec.py",
        '"stop_signal": "SIGKILL"',
        '"stop_signal": "SIGTERM"',
        (f"{_CHAOS}::test_what_an_engine_that_was_killed_left_is_collected",),
        DOCKER_WORKS,
    ),
)
MUTANTS = (*_SNAPSHOTS, *_SILENCE)
