"""What keeps answers from an agent, and an agent's code from its grader."""

from __future__ import annotations

from tests.mutants import Mutant

_ATTACKS = "tests/docker/test_grading_attacks.py"
_HONEST = f"{_ATTACKS}::test_matches_start_afresh_and_luck_is_seeded"
_REACH = f"{_ATTACKS}::test_the_graders_things_are_out_of_reach"
_GRADING = "tests/unit/tasks/test_grading.py"
_GRADES = f"{_GRADING}::test_a_grade_is_measured_once_and_remembered_on_disk"
_ARTEFACT = "tests/unit/tasks/test_artefact.py"

MUTANTS = (
    Mutant(
        "a grader of code gets a box with a second user",
        "air/tasks/spec.py",
        'second_user=self.trust != "data"',
        "second_user=False",
        (f"{_REACH}[opponents]",),
        _HONEST,
    ),
    Mutant(
        "a score that is no finite number is our failure",
        "air/tasks/grading.py",
        "if not usable(said.get(primary)):",
        "if said.get(primary) is None:",
        (f"{_GRADING}::test_a_failure_of_ours_is_raised_and_never_remembered",),
        _GRADES,
    ),
    Mutant(
        "a grader that crashes is our failure",
        "air/tasks/grading.py",
        "if result.code not in (0, BAD_ARTEFACT):",
        "if False:",
        (f"{_GRADING}::test_a_failure_of_ours_is_raised_and_never_remembered",),
        _GRADES,
    ),
    Mutant(
        "an artefact is bounded",
        "air/tasks/artefact.py",
        "await box.read(name, max_bytes=left)",
        "await box.read(name)",
        (f"{_ARTEFACT}::test_what_is_no_file_of_its_size_is_told_to_the_agent",),
        _GRADES,
    ),
    Mutant(
        "answers are not in an agent's box",
        "air/tasks/__init__.py",
        "    await box.put(prepared.agent)",
        "    await box.put(prepared.agent)\n    await box.put(prepared.grader)",
        (
            f"{_ARTEFACT}::test_a_staged_workspace_has_starter_files_and_data_and_no_answer",
            f"{_ATTACKS}::test_no_answer_is_in_the_agents_box",
        ),
        _GRADES,
    ),
)
