"""What a person's tools hold to: the record of a box, the way into it, the doctor."""

from __future__ import annotations

from tests.mutants import PROCESS_WORKS, Mutant

_RECORD = "air/sandbox/ops/command_log.py"
_VISIT = "air/sandbox/ops/attach.py"
_LEFT = "air/sandbox/ops/orphans.py"
_EVENTS = "tests/unit/sandbox/test_box_events.py"
_VISITS = "tests/docker/test_box_visit.py"
_DOCTOR = "tests/unit/sandbox/test_doctor.py"
_VISITED = f"{_VISITS}::test_much_output_and_input_arrive_whole"

MUTANTS = (
    Mutant(
        "a record is its user's alone",
        _RECORD,
        "os.open(self._file, _OPEN, 0o600)",
        "os.open(self._file, _OPEN, 0o644)",
        (f"{_EVENTS}::test_only_its_user_may_read_a_record",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a record is bounded",
        _RECORD,
        "if self._size > MAX_BYTES and not last:",
        "if False:",
        (f"{_EVENTS}::test_a_record_is_bounded_and_counts_the_rest",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a long run leaves a bounded number of records",
        _RECORD,
        "if len(_ended) > KEEP_FILES:",
        "if False:",
        (f"{_EVENTS}::test_a_long_run_leaves_no_more_than_is_kept",),
        PROCESS_WORKS,
    ),
    Mutant(
        "no box fails for its record",
        _RECORD,
        "            _say(error)\n            return\n",
        "            raise\n",
        (f"{_EVENTS}::test_a_record_that_cannot_be_written_is_said_once_and_costs_nothing",),
        PROCESS_WORKS,
    ),
    Mutant(
        "a terminal obeys nothing that an agent wrote",
        "air/cli/boxes/box.py",
        "$ {_printable(event['command'])}",
        "$ {event['command']}",
        ("tests/unit/cli/test_box.py::test_a_terminal_obeys_nothing_that_an_agent_wrote",),
    ),
    Mutant(
        "an interrupted visit takes its command with it",
        _VISIT,
        "except BaseException:  # an interrupt above all: the command would go on without us",
        "except KeyError:",
        (f"{_VISITS}::test_an_interrupt_takes_the_command_with_it",),
        _VISITED,
    ),
    Mutant(
        "out of memory ends a visitor before the guest",
        _VISIT,
        "echo 1000 >/proc/self/oom_score_adj",
        "echo 0 >/proc/self/oom_score_adj",
        (f"{_VISITS}::test_a_command_sees_what_the_agent_sees",),
        _VISITED,
    ),
    Mutant(
        "a process is ours only by what one of ours gave it",
        _LEFT,
        "    if MARK in variables:\n",
        "    if True:\n",
        (f"{_DOCTOR}::test_only_what_one_of_ours_gave_makes_a_process_ours",),
    ),
    Mutant(
        "a lock whose taker lives is no leftover",
        _LEFT,
        'left = taker != pid and not Path(f"/proc/{taker}").exists()',
        "left = taker != pid",
        (f"{_DOCTOR}::test_a_lock_that_a_child_keeps",),
    ),
)
