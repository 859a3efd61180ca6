"""What the host's end holds to: the stream, the process box, the pool, and whose something is."""

from __future__ import annotations

from tests.mutants import PROCESS_WORKS, Mutant, as_process

_WIRE = "air/sandbox/wire/connection.py"
_BOX = "air/sandbox/wire/guest_box.py"
_PROCESS = "air/sandbox/process/box.py"
_POOL = "air/sandbox/pool/box_pool.py"
_CLEANUP = "air/sandbox/ops/cleanup.py"
_OWNERSHIP = "air/sandbox/contract/ownership.py"
_DEFENCES = "tests/unit/sandbox/test_box_defences.py"
_GUEST_TESTS = "tests/unit/sandbox/test_box_guest.py"
_PROCESS_TESTS = "tests/unit/sandbox/test_box_process.py"
_POOL_TESTS = "tests/unit/sandbox/test_box_pool.py"
_CLEANUP_TESTS = "tests/unit/sandbox/test_box_cleanup.py"
_DEAD = f"{_CLEANUP_TESTS}::test_this_process_is_alive_and_others_are_only_dead_for_certain"
_LEFT = f"{_CLEANUP_TESTS}::test_left_behind"
_BOUND = f"{_POOL_TESTS}::test_never_more_than_the_bound_and_each_box_once"

_STREAM = (
    Mutant(
        "the first request of a turn does not wait for the others",
        _WIRE,
        "            self._flush()\n            self._gathers = True",
        "            self._gathers = True",
        (f"{_GUEST_TESTS}::test_the_first_frame_of_a_turn_goes_at_once_and_the_others_together",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a frame of impossible lengths is refused",
        _WIRE,
        "if head > MAX_HEADER or body > MAX_BODY:",
        "if False:",
        (f"{_GUEST_TESTS}::test_garbage_is_no_frame",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a request that is too large is refused here",
        _WIRE,
        "if len(head) > MAX_HEADER or len(body) > MAX_BODY:",
        "if False:",
        (f"{_GUEST_TESTS}::test_too_large_a_request_is_refused",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a frame without a header ends the box",
        _WIRE,
        "if not isinstance(header, dict):",
        "if False:",
        (f"{_GUEST_TESTS}::test_garbage_is_no_frame",),
        PROCESS_WORKS,
    ),
    Mutant(
        "an answer that nobody asked for is ignored",
        _WIRE,
        'isinstance(ident := header.get("id"), int) and ident in self._waiting:',
        '(ident := header.get("id")) or True:',
        (f"{_DEFENCES}::test_an_answer_that_nobody_asked_for_is_ignored",),
        PROCESS_WORKS,
    ),
    Mutant(
        "an answer without bottom ends the box, not the harness",
        _WIRE,
        "(OSError, ValueError, RecursionError, asyncio.IncompleteReadError)",
        "(OSError, ValueError, asyncio.IncompleteReadError)",
        (f"{_DEFENCES}::test_an_answer_without_bottom_ends_the_box_not_the_harness",),
        PROCESS_WORKS,
    ),
    Mutant(
        "of a guest's errors only the end is kept",
        _WIRE,
        "self._stderr = (self._stderr + data)[-4096:]",
        "self._stderr += data",
        (f"{_DEFENCES}::test_of_a_guests_errors_only_the_end_is_kept",),
        PROCESS_WORKS,
    ),
    Mutant(
        "whoever waits learns that the box died",
        _WIRE,
        "            queue.put_nowait(None)\n",
        "            pass\n",
        as_process("closing-twice-is-harmless-and-use-afterwards-says-so"),
        PROCESS_WORKS,
    ),
    Mutant(
        "an exec that is cancelled is told to the guest",
        _BOX,
        'self._guest.post({"op": "kill", "id": 0, "target": ident})',
        "pass",
        as_process("a-cancelled-exec-kills-its-command"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a scratch folder is none of the system's",
        _BOX,
        "if posixpath.normpath(folder) != folder or top in _TAKEN:",
        "if False:",
        (f"{_PROCESS_TESTS}::test_scratch_folders_are_checked",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a removal survives a cancelled caller",
        _BOX,
        "        await to_the_end(self._closing)",
        "        await self._closing",
        (
            f"{_POOL_TESTS}::test_a_cancelled_pool_leaves_nothing",
            f"{_DEFENCES}::test_a_cancelled_close_still_removes_the_box",
        ),
        PROCESS_WORKS,
    ),
)
_PROCESS_BOX = (
    Mutant(
        "commands find nothing of the harness's environment",
        _PROCESS,
        "            env={},\n",
        "",
        (f"{_PROCESS_TESTS}::test_environment_is_not_inherited[plain]",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a key at the harness's terminal does not reach a box",
        _PROCESS,
        "start_new_session=True",
        "start_new_session=False",
        (f"{_DEFENCES}::test_a_guest_is_in_a_session_of_its_own",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a process's memory is limited",
        _PROCESS,
        "            (resource.RLIMIT_DATA, limits.memory_mb * MIB),\n",
        "",
        (f"{_PROCESS_TESTS}::test_memory_and_file_size_are_bounded[plain]",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a process's files are limited",
        _PROCESS,
        "rlimits.append((resource.RLIMIT_FSIZE, limits.disk_mb * MIB))",
        "pass",
        (f"{_PROCESS_TESTS}::test_memory_and_file_size_are_bounded[plain]",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a process leaves no core",
        _PROCESS,
        "            (resource.RLIMIT_CORE, 0),\n",
        "",
        as_process("a-crash-leaves-no-core"),
        PROCESS_WORKS,
    ),
    Mutant(
        "a start of a process box that is cancelled leaves nothing",
        _PROCESS,
        "except BaseException as error:  # cancellation too: nothing is left running",
        "except Exception as error:",
        tuple(
            f"{_PROCESS_TESTS}::test_a_cancelled_start_leaves_nothing[plain-{delay}]"
            for delay in ("0.0", "0.01", "0.03", "0.1")
        ),
        PROCESS_WORKS,
    ),
)
_LENDING = (
    Mutant(
        "a box is lent once",
        _POOL,
        "        if box in self._lent:\n            self._retire(box)",
        "        if box in self._lent:\n            self._lent.discard(box)\n"
        "            self._shelf(box.spec).ready.append(box)\n            self._balance()",
        (_BOUND,),
        PROCESS_WORKS,
    ),
    Mutant(
        "no more boxes exist than allowed",
        _POOL,
        "if missing > 0 and self.stats.live < self._max:",
        "if missing > 0:",
        (_BOUND,),
        PROCESS_WORKS,
    ),
    Mutant(
        "a dead spare is not handed out",
        _POOL,
        "if box.alive and time.monotonic()",
        "if time.monotonic()",
        (f"{_POOL_TESTS}::test_a_dead_spare_is_not_handed_out",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a spare that has waited too long is not handed out",
        _POOL,
        "if box.alive and time.monotonic() - box.born < ownership.WARM_SECONDS / 2:",
        "if box.alive:",
        (f"{_DEFENCES}::test_a_spare_that_has_waited_too_long_is_not_handed_out",),
        PROCESS_WORKS,
    ),
    Mutant(
        "only a few boxes start at once",
        _POOL,
        "asyncio.Semaphore(STARTS_AT_ONCE)",
        "asyncio.Semaphore(1000)",
        (f"{_DEFENCES}::test_only_a_few_boxes_start_at_once",),
        PROCESS_WORKS,
    ),
    Mutant(
        "leaving a pool takes lent boxes with it",
        _POOL,
        "for box in [*self._lent, *(b for",
        "for box in [*(b for",
        (f"{_POOL_TESTS}::test_leaving_the_pool_takes_lent_boxes_and_waiters_with_it",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a pool removes what dead processes left when it opens",
        _POOL,
        "await to_the_end(asyncio.to_thread(cleanup.collect))",
        "pass",
        (f"{_DEFENCES}::test_a_pool_removes_what_dead_processes_left_when_it_opens",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a start that failed for good is not tried again",
        "air/sandbox/pool/start_retry.py",
        "retry=retry_if_exception_type(TransientStartError)",
        "retry=retry_if_exception_type(Exception)",
        (f"{_DEFENCES}::test_a_start_that_fails_for_good_is_tried_once",),
        PROCESS_WORKS,
    ),
)
# Whose something is: pure tests only, or other people's boxes would be removed.
_OWNERS = (
    Mutant(
        "an owner on another machine is never dead",
        _OWNERSHIP,
        "len(parts) != 3 or parts[0] != _host() or",
        "len(parts) != 3 or",
        (_DEAD,),
    ),
    Mutant(
        "a process that has another's number is not the owner",
        _OWNERSHIP,
        "        return start != parts[2]\n",
        "        return False\n",
        (_DEAD,),
    ),
    Mutant(
        "a box without our labels is not ours",
        _OWNERSHIP,
        "if OWNER_LABEL not in labels or EXPIRES_LABEL not in labels:",
        "if OWNER_LABEL not in labels:",
        (_LEFT,),
    ),
    Mutant(
        "a box whose owner is dead is left behind",
        _OWNERSHIP,
        "return expired or is_dead(labels[OWNER_LABEL])",
        "return expired",
        (_LEFT,),
    ),
    Mutant(
        "a box that is past its time is left behind",
        _OWNERSHIP,
        "return expired or is_dead(labels[OWNER_LABEL])",
        "return is_dead(labels[OWNER_LABEL])",
        (_LEFT,),
    ),
    Mutant(
        "a box does not expire while it waits to be handed out",
        _OWNERSHIP,
        "{time.time() + seconds + WARM_SECONDS:.0f}",
        "{time.time() + seconds:.0f}",
        (_LEFT,),
    ),
    Mutant(
        "only folders of the dead are removed",
        _CLEANUP,
        "        if ownership.is_dead(label):\n            shutil",
        "        if True:\n            shutil",
        (f"{_CLEANUP_TESTS}::test_folders_of_the_dead_are_removed",),
    ),
    Mutant(
        "only folders that are named as ours are looked at",
        _OWNERSHIP,
        "ours = name.startswith(FOLDER_PREFIX) and all(map(str.isdigit, (namespace, pid, start)))",
        "ours = True",
        (f"{_CLEANUP_TESTS}::test_only_names_of_ours_have_an_owner",),
    ),
    Mutant(
        "a box's folder says of which pid namespace its owner is",
        _OWNERSHIP,
        'f"{_machine()}/{namespace}:{pid}:{start}"',
        'f"{_host()}:{pid}:{start}"',
        (f"{_CLEANUP_TESTS}::test_folders_of_the_dead_are_removed",),
    ),
)
MUTANTS = (*_STREAM, *_PROCESS_BOX, *_LENDING, *_OWNERS)
