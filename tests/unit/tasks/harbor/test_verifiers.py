"""What a step's verifier takes over from the task's, and where a verifier's own image comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from air import tasks
from air.errors import MissingError
from air.sandbox.images import build_contexts
from air.tasks.sources import harbor_images as images
from air.tasks.sources.harbor.folder import HarborFolder, read
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.sources.harbor.source import HarborRules
from air.tasks.sources.harbor.unsupported_features import refusals

STEPS = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'


def make(folder: Path, toml: str, **files: str) -> Path:
    """Writes a task with the steps `one` and `two`; `files` are further files, with `__` for `/`."""
    usual = {
        "task.toml": toml,
        "environment/Dockerfile": "FROM air-base\n",
        "steps/one/instruction.md": "First.\n",
        "steps/two/instruction.md": "Second.\n",
    }
    for name, text in (usual | {key.replace("__", "/"): files[key] for key in files}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def with_tests(folder: Path, toml: str) -> HarborRules:
    make(folder, toml)
    (folder / "tests").mkdir()
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    rules = tasks.load(f"harbor:{folder.name}", harbor=HarborSettings(root=folder.parent)).rules
    assert isinstance(rules, HarborRules)
    return rules


def own_images(folder: HarborFolder) -> list[str | None]:
    return [images.verifier_image(folder, step) for step in folder.config.steps]


def test_a_step_takes_over_the_network_of_the_tasks_verifier(tmp_path: Path) -> None:
    toml = (
        '[verifier]\nnetwork_mode = "no-network"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
        'verifier = { network_mode = "allowlist", allowed_hosts = ["a.org"] }\n'
    )
    rules = with_tests(tmp_path / "task", toml)
    boxes = [rules.grading_box(rules.untouched(number)) for number in (0, 1)]
    assert [box.network for box in boxes] == [(), ("a.org",)]


def test_a_step_takes_over_user_and_variables_of_the_tasks_verifier_but_not_its_time(
    tmp_path: Path,
) -> None:
    toml = '[verifier]\nuser = "root"\ntimeout_sec = 50\nenv = { A = "1", B = "2" }\n' + STEPS
    rules = with_tests(tmp_path / "task", f'{toml}verifier = {{ user = 7, env = {{ B = "3" }} }}\n')
    boxes = [rules.grading_box(rules.untouched(number)) for number in (0, 1)]
    assert [box.open and box.open.user for box in boxes] == ["root", "7"]
    assert [rules._test_variables(n) for n in (0, 1)] == [
        {"A": "1", "B": "2"},
        {"A": "1", "B": "3"},
    ]
    assert rules.spec().limits.grade_seconds == 600.0


def test_the_image_of_a_steps_verifier_comes_from_the_step_before_the_task(tmp_path: Path) -> None:
    toml = f'[verifier.environment]\ndocker_image = "of-the-task"\n{STEPS}'
    folder = make(tmp_path, toml, steps__two__tests__Dockerfile="FROM air-base\n")
    two = build_contexts.tag(folder / "steps" / "two" / "tests")
    assert own_images(read(folder)) == ["of-the-task", two]
    make(tmp_path, f"{toml}[steps.verifier.environment]\ncpus = 2\n")
    assert own_images(read(folder)) == ["of-the-task", two]
    (folder / "steps" / "two" / "tests" / "Dockerfile").unlink()
    assert own_images(read(folder)) == ["of-the-task", "of-the-task"]


def test_tests_in_the_image_of_one_step_leave_the_other_without(tmp_path: Path) -> None:
    toml = f'[verifier]\nenvironment_mode = "separate"\n{STEPS}'
    make(tmp_path, toml, steps__two__tests__Dockerfile="FROM air-base\n")
    with pytest.raises(MissingError, match=r"steps/one: there is no tests/test\.sh"):
        read(tmp_path)
    make(tmp_path, toml, steps__one__tests__Dockerfile="FROM air-base\n")
    assert None not in own_images(read(tmp_path))


def test_a_verifiers_dockerfile_is_built_also_beside_an_existing_image(tmp_path: Path) -> None:
    toml = '[environment]\ndocker_image = "air-base"\n[verifier]\nenvironment_mode = "separate"\n'
    make(tmp_path, toml + STEPS, tests__Dockerfile="FROM air-base\nRUN true\n")
    tests = tmp_path / "tests"
    found = [(one.tag, one.folder) for one in images.wanted(read(tmp_path))]
    assert found == [("air-base", None), (build_contexts.tag(tests), tests)]


def test_a_compose_file_of_a_step_is_refused(tmp_path: Path) -> None:
    compose = {"steps__two__tests__docker-compose.yaml": "services: {}\n"}
    make(tmp_path, STEPS, tests__Dockerfile="", **compose, **{"tests__test.sh": "true\n"})
    [reason] = refusals(read(tmp_path))
    assert reason.startswith("steps/two/tests/docker-compose.yaml: ")
