"""Who has a GPU and who has a place: locks, leases of GPUs, claims, and what a box is told of them."""

from __future__ import annotations

from tests.mutants import DOCKER_WORKS, PROCESS_WORKS, Mutant

_LOCKS = "air/sandbox/pool/file_locks.py"
_LEASES = "air/sandbox/pool/gpu_leases.py"
_POOL = "air/sandbox/pool/box_pool.py"
_CLAIMS = "air/sandbox/pool/host_slots.py"
_PROCESS = "air/sandbox/process/box.py"
_CONTAINER = "air/sandbox/docker/container_spec.py"
_GPUS = "air/sandbox/pool/gpus.py"
_LOCK_TESTS = "tests/unit/sandbox/test_locks.py"
_LEASE_TESTS = "tests/unit/sandbox/test_leases.py"
_CLAIM_TESTS = "tests/unit/sandbox/test_claims.py"
_GPU_TESTS = "tests/unit/sandbox/test_gpus.py"
_IN_DOCKER = "tests/docker/test_gpu_leases.py"
_LOCKED = f"{_LOCK_TESTS}::test_a_killed_holder_frees_it"
_LEASED = f"{_LEASE_TESTS}::test_more_than_there_are_is_one_line"
_UMASK = f"{_LOCK_TESTS}::test_folder_and_files_are_for_all_users_whatever_the_umask"


def _lock(name: str, old: str, new: str, test: str, still: str = _LOCKED) -> Mutant:
    return Mutant(name, _LOCKS, old, new, (f"{_LOCK_TESTS}::{test}",), still)


def _lease(name: str, old: str, new: str, *tests: str, still: str = _LEASED) -> Mutant:
    return Mutant(name, _LEASES, old, new, tests, still)


def _claim(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name, file, old, new, (f"{_CLAIM_TESTS}::{test}",), PROCESS_WORKS)


def _docker(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name, file, old, new, (f"{_IN_DOCKER}::{test}",), DOCKER_WORKS)


_OF_LOCKS = (
    _lock(
        "a lock is one process's alone",
        "                fcntl.flock(fd, kind | fcntl.LOCK_NB)\n                if not shared:",
        "                if not shared:",
        "test_two_processes_are_never_inside_together",
        still=f"{_LOCK_TESTS}::test_links_are_not_followed",
    ),
    _lock(
        "a lock's file is no link",
        "_FILE = os.O_NOFOLLOW | os.O_NONBLOCK",
        "_FILE = os.O_NONBLOCK",
        "test_links_are_not_followed",
    ),
    _lock(
        "the folder of locks is no link",
        "os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_DIRECTORY | os.O_CLOEXEC",
        "test_a_folder_that_is_a_link_is_refused",
    ),
    _lock(
        "a lock is a regular file",
        "if stat.S_ISREG(os.fstat(fd).st_mode):",
        "if True:",
        "test_a_fifo_is_refused_and_nobody_waits_for_it",
    ),
    Mutant(
        "the folder of locks is for all users",
        _LOCKS,
        "        made.chmod(0o1777)",
        "        pass",
        (_UMASK,),
        _LOCKED,
    ),
    Mutant(
        "a lock's file is for all users",
        _LOCKS,
        "        os.fchmod(fd, 0o666)",
        "        pass",
        (_UMASK,),
        _LOCKED,
    ),
    _lock(
        "a fork does not free its parent's lock",
        "if os.getpid() == self._pid:",
        "if True:",
        "test_a_fork_that_releases_leaves_it_to_its_parent",
    ),
    _lock(
        "a release frees a lock though a child has a copy",
        "            fcntl.flock(fd, fcntl.LOCK_UN)",
        "            pass",
        "test_a_release_frees_it_though_a_child_has_a_copy",
    ),
    _lock(
        "a folder of locks is not replaced by who comes second",
        '        (made / ".air").touch()',
        "        pass",
        "test_the_folder_is_made_by_several_at_once",
    ),
    _lock(
        "a holder's name is fit for a terminal",
        'c if c.isprintable() else "?"',
        "c",
        "test_what_a_file_says_is_only_shown",
    ),
    Mutant(
        "those who wait for a lock are not passed by",
        _LOCKS,
        "        if wanted(marker):  #",
        "        if False:  #",
        (f"{_LEASE_TESTS}::test_who_wants_two_is_not_passed_by_for_ever",),
        _LOCKED,
    ),
)
_OF_LEASES = (
    _lease(
        "a GPU that is shared is nobody's alone",
        'together = file_locks.acquire(f"{gpu.uuid}.0", shared=True)',
        'together = file_locks.acquire(f"{gpu.uuid}.all", shared=True)',
        f"{_LEASE_TESTS}::test_slots",
    ),
    _lease(
        "several GPUs are had together or not at all",
        "        if not keep:\n            lease.release()",
        "        pass",
        f"{_LEASE_TESTS}::test_all_or_none",
    ),
    _lease(
        "who has its turn keeps what it has of several GPUs",
        "keep=turn is not None",
        "keep=False",
        f"{_LEASE_TESTS}::test_while_it_waits_only_one_keeps_a_part",
    ),
    _lease(
        "a spare does not pass by those who wait for GPUs",
        "        if self._line.locked():\n            return None\n",
        "",
        f"{_LEASE_TESTS}::test_first_come_first_served_within_a_process",
    ),
    _lease(
        "a GPU that a container uses still is waited for",
        "self._occupied = await asyncio.to_thread(occupied, lease.label)",
        "self._occupied = {}",
        f"{_IN_DOCKER}::test_a_live_owners_container_is_waited_for",
        still=DOCKER_WORKS,
    ),
    _lease(
        "what a dead owner's container holds is freed first",
        "        engine.remove_left_behind(ownership.GPU_LABEL)\n",
        "",
        f"{_IN_DOCKER}::test_a_dead_owners_container_is_removed_first",
        still=DOCKER_WORKS,
    ),
    _lease(
        "a container that names no slot has the whole GPU",
        'return uuid, slot or "0"',
        "return uuid, slot",
        f"{_LEASE_TESTS}::test_which_containers_stand_against_it",
    ),
    _lease(
        "an engine that fails hands no GPU on",
        "    except MissingError:  #",
        "    except Exception:  #",
        f"{_IN_DOCKER}::test_an_engine_that_fails_hands_nothing_on",
        still=DOCKER_WORKS,
    ),
    Mutant(
        "an engine is knocked at before it is asked",
        "air/sandbox/docker/engine.py",
        "    sdk.knock()\n",
        "",
        (f"{_LEASE_TESTS}::test_two_hundred_leases_leave_nothing_open",),
        _LEASED,
    ),
)
_OF_BOXES = (
    _claim(
        "GPUs are given back only when their box is gone",
        _POOL,
        "        try:\n            await box.close()",
        "        self._claimed[box].release()\n        try:\n            await box.close()",
        "test_gpus_are_given_back_only_when_the_box_is_gone",
    ),
    _claim(
        "spares end where others wait",
        _POOL,
        "while shelf.resting and shelf.ready:",
        "while False:",
        "test_spares_give_their_places_to_others",
    ),
    _claim(
        "a box that nobody waits for keeps no GPU",
        _POOL,
        "self._warm if shelf.spec.gpus else len(shelf.ready)",
        "len(shelf.ready)",
        "test_a_box_that_nobody_waits_for_any_more_keeps_no_gpu",
    ),
    _docker(
        "a rebuilt image is not served from old spares",
        _POOL,
        'key = f"{digest} {spec.model_dump_json()}"',
        "key = spec.model_dump_json()",
        "test_a_rebuilt_image_is_not_served_from_old_spares",
    ),
    _claim(
        "nested boxes have places of their own",
        _CLAIMS,
        '("nested", max(1, max_boxes() // 4)) if nested else ("box", max_boxes())',
        '("box", max_boxes())',
        "test_nested_boxes_do_not_wait_for_those_that_wait_for_them",
    ),
    _claim(
        "a host has so many places and no more",
        _CLAIMS,
        "return file_locks.acquire(*self._places, run=self._run)",
        'return file_locks.Lock("", os.dup(2))',
        "test_a_host_has_so_many_places_and_no_more",
    ),
    _claim(
        "commands do not inherit the locks of GPUs",
        "air/sandbox/guest/main.py",
        "            os.set_inheritable(fd, False)\n",
        "            pass\n",
        "test_commands_do_not_inherit_the_lock",
    ),
    _claim(
        "a guest that outlives its harness keeps its GPU",
        _PROCESS,
        "            pass_fds=self._gpus.fds,\n",
        "",
        "test_a_guest_that_outlives_its_killed_harness_keeps_its_gpu",
    ),
    _claim(
        "a process box sees its GPUs and no others",
        _PROCESS,
        'gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus.uuids)}',
        "gpus: dict[str, str] = {}",
        "test_a_box_sees_its_gpus_and_no_others",
    ),
    _claim(
        "a box starts with as many GPUs as it wants",
        "air/sandbox/__init__.py",
        "if len(gpus.uuids) != spec.gpus:",
        "if False:",
        "test_a_box_with_gpus_needs_a_pool_that_has_them",
    ),
    _docker(
        "a container without GPUs asks for none",
        _CONTAINER,
        'none = {} if gpus.gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}',
        "none: dict[str, str] = {}",
        "test_a_box_without_gpus_gets_none_where_nvidias_runtime_is_the_default",
    ),
    _docker(
        "a container is given the very GPUs that it leased",
        _CONTAINER,
        "device_requests=_devices(gpus),",
        "",
        "test_the_engine_is_told_these_very_gpus",
    ),
    _docker(
        "a container says which GPUs it has",
        _CONTAINER,
        "({ownership.GPU_LABEL: gpus.label} if gpus.gpus else {})",
        "{}",
        "test_the_engine_is_told_these_very_gpus",
    ),
    _docker(
        "an engine that cannot give GPUs is the user's to mend",
        "air/sandbox/docker/engine_errors.py",
        'if "could not select device driver" in low:',
        "if False:",
        "test_a_start_that_fails_leaves_the_gpu_free_and_no_container",
    ),
)
_OF_GPUS = (
    Mutant(
        "a GPU's name is no path",
        _GPUS,
        "not _UUID.fullmatch(uuid)",
        "not uuid",
        (f"{_GPU_TESTS}::test_a_bad_declaration",),
        f"{_GPU_TESTS}::test_a_declared_inventory",
    ),
    Mutant(
        "boxes have none of the run's own GPUs",
        _GPUS,
        "if gpu not in taken]",
        "]",
        (f"{_GPU_TESTS}::test_boxes_may_not_have_the_runs_own",),
        f"{_GPU_TESTS}::test_a_declared_inventory",
    ),
    Mutant(
        "a run takes only the GPUs that it may see",
        _GPUS,
        "        chosen = _visible(found)",
        "        chosen = list(found)",
        (f"{_GPU_TESTS}::test_auto_heeds_what_is_visible",),
        f"{_GPU_TESTS}::test_a_declared_inventory",
    ),
)
MUTANTS = (*_OF_LOCKS, *_OF_LEASES, *_OF_BOXES, *_OF_GPUS)
