"""The runs of a co-evolution, and whose folder it is."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from air.errors import ConfigError, MissingError, UsageError
from air.train.coevolve.files import FILE
from air.train.coevolve.plan import RUNS, plan
from air.train.config.coevolve_config import CoevolveConfig
from air.worlds.proposals.proposer import ProposerSettings

NO_OBJECTS: tuple[object, ...] = (3, "x", [], [1], None)
"""Values that are no JSON objects."""


def config(folder: Path, **changes: Any) -> CoevolveConfig:
    files = {
        name: {"model": name, "run_files": [f"configs/agent0/small_{name}.toml"]}
        for name in ("proposer", "executor")
    }
    held_out = folder / "held_out.jsonl"
    held_out.write_text(json.dumps({"question": "What is 1 + 1?", "answer": "2"}))
    data = {"name": "c", "output_dir": folder, "held_out": {"data": held_out}, **files, **changes}
    return CoevolveConfig.model_validate(data)


def test_the_defaults_are_agent0s(tmp_path: Path) -> None:
    """aiming-lab/Agent0 at 3cf8bfe."""
    settings = config(tmp_path)
    assert settings.answers.k == ProposerSettings(url="http://x").k == 10
    assert (settings.payment.reward, settings.payment.tool) == ("as_coded", 1.0)
    assert (settings.generation.least, settings.generation.most) == (0.3, 0.8)


def test_each_round_has_runs_of_its_own(tmp_path: Path) -> None:
    planned = plan(config(tmp_path, seed=3))
    run = planned.executor_run(2, "model", 17)
    assert run.folder == tmp_path / "c" / "round2" / "executor"
    taskset: Any = run.orchestrator.train.source[0].env.taskset
    assert taskset.tasks == [f"posed:{tmp_path}/c/round2/posed.json"]
    assert taskset.examples_per_task == 17
    assert (run.model.name, run.embedded.seed) == ("model", 3002)
    run = planned.proposer_run(1, "other")
    taskset = run.orchestrator.train.source[0].env.taskset
    assert taskset.tasks == [f"proposal:{tmp_path}/c/round1/payment.json"]
    assert taskset.examples_per_task == run.max_steps * run.orchestrator.batch_size == 8 * 48


def test_a_folder_belongs_to_one_set_of_settings(tmp_path: Path) -> None:
    planned = plan(config(tmp_path, rounds=1))
    planned.check()
    planned.claim()
    plan(config(tmp_path, rounds=5)).claim()  # rounds may be added
    with pytest.raises(UsageError, match="begun with another `payment`"):
        plan(config(tmp_path, payment={"repetition": 0})).claim()
    with pytest.raises(UsageError, match="begun with another `answers`"):
        plan(config(tmp_path, answers={"k": 3})).claim()
    (tmp_path / "c" / FILE).unlink()
    (tmp_path / "c" / "else").touch()
    with pytest.raises(UsageError, match="has something else in it"):
        planned.claim()


def test_what_a_killed_process_has_not_finished_is_no_other_content(tmp_path: Path) -> None:
    """Otherwise, a process that is killed while it writes the first file makes the folder unusable."""
    planned = plan(config(tmp_path, rounds=1))
    evaluation = planned.held_out(0, "model")
    for folder in (planned.folder, evaluation.folder):
        folder.mkdir(parents=True)
        (folder / ".new-0123456789abcdef").touch()
    assert evaluation.fits()
    evaluation.open()
    assert evaluation.fits()
    assert not planned.held_out(0, "other").fits()
    (evaluation.folder / "evaluation.json").unlink()
    (evaluation.folder / "trajectories").mkdir()
    assert not evaluation.fits()
    shutil.rmtree(planned.round_folder(0))
    planned.claim()
    assert (planned.folder / FILE).is_file()


def test_seeds_and_repeatability_are_part_of_the_settings(tmp_path: Path) -> None:
    plan(config(tmp_path)).claim()
    with pytest.raises(UsageError, match="begun with another `seed`"):
        plan(config(tmp_path, seed=1)).claim()
    files = ["configs/agent0/small_executor.toml"]
    settings = {"embedded": {"deterministic": True}}
    side: dict[str, Any] = {"model": "executor", "run_files": files, "settings": settings}
    with pytest.raises(UsageError, match="begun with another `executor`"):
        plan(config(tmp_path, executor=side)).claim()
    more = tmp_path / "more.toml"
    more.write_text("embedded.deterministic = true")
    side = {"model": "executor", "run_files": [*files, str(more)]}
    with pytest.raises(UsageError, match="begun with another `executor`"):
        plan(config(tmp_path, executor=side)).claim()


def test_run_files_need_one_source_of_air(tmp_path: Path) -> None:
    side = {"model": "m", "run_files": ["configs/mlgym/several.toml"]}
    with pytest.raises(ConfigError):
        plan(config(tmp_path, executor=side))


def test_the_executor_has_its_tools_in_all_its_tasks(tmp_path: Path) -> None:
    tools = ["calculator", {"name": "code_interpreter", "seconds": 5}]
    planned = plan(config(tmp_path, answers={"tools": tools, "max_turns": 4}))
    planned.check()
    run = planned.executor_run(2, "model", 17)
    taskset: Any = run.orchestrator.train.source[0].env.taskset
    assert taskset.tasks == [f"posed:{tmp_path}/c/round2/posed.json"]
    env: Any = planned.held_out(2, "model").settings.envs[0]
    assert env.taskset.tasks == [f"posed:{tmp_path}/c/round2/held_out.json"]
    named = planned.posed(tmp_path / "rows.jsonl")
    assert (named["tools"], named["turns"]) == (tools, 4)
    planned.claim()
    with pytest.raises(UsageError, match="begun with another `answers`"):
        plan(config(tmp_path)).claim()


def test_the_rule_of_equality_is_in_all_tasks(tmp_path: Path) -> None:
    planned = plan(config(tmp_path))
    assert planned.posed(tmp_path / "rows.jsonl")["equality"] == "math"
    assert planned.payment(None)["equality"] == "math"
    planned.claim()
    with pytest.raises(UsageError, match="begun with another `answers`"):
        plan(config(tmp_path, answers={"equality": "forms"})).claim()
    by_forms = plan(config(tmp_path, name="forms", answers={"equality": "forms"}))
    taskset: Any = by_forms.executor_run(2, "model", 17).orchestrator.train.source[0].env.taskset
    assert taskset.tasks == [f"posed:{tmp_path}/forms/round2/rows.jsonl"]


def test_tools_are_checked_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_turns must be at least 2"):
        config(tmp_path, answers={"tools": ["calculator"]})
    with pytest.raises(MissingError, match="there is no tool 'calc'"):
        plan(config(tmp_path, answers={"tools": ["calc"], "max_turns": 2})).check()
    with pytest.raises(ConfigError, match="`submit` would end an episode without an answer"):
        plan(config(tmp_path, answers={"tools": ["submit"], "max_turns": 2})).check()


def test_tools_are_loaded_once(tmp_path: Path) -> None:
    """Otherwise, each executor would have a limit of its own on simultaneous calls and on hanging calls."""
    planned = plan(config(tmp_path, answers={"tools": ["calculator"], "max_turns": 2}))
    planned.check()
    assert list(planned.tools.tools) == ["calculator"]
    assert planned.tools is planned.tools


def test_folders_that_are_older_than_a_key_stay_valid(tmp_path: Path) -> None:
    planned = plan(config(tmp_path, answers={"equality": "forms"}))
    planned.claim()
    written = json.loads((tmp_path / "c" / FILE).read_bytes())
    assert "tools" not in written["answers"]
    assert "equality" not in written["answers"]
    assert "rows" not in written["generation"]


def test_a_cap_on_rows_is_part_of_the_settings(tmp_path: Path) -> None:
    plan(config(tmp_path, generation={"rows": 7})).claim()
    with pytest.raises(UsageError, match="begun with another `generation`"):
        plan(config(tmp_path)).claim()


@pytest.mark.parametrize(
    ("key", "line", "remedy"),
    [
        ("output_dir", 'output_dir = "x"', "--output-dir"),
        ("run.name", 'run.name = "x"', "--name"),
        ("embedded.seed", "embedded.seed = 0", "--seed"),
        ("resume", "resume.step = 1", "continues a co-evolution"),
    ],
)
def test_trainings_may_not_set_what_the_coevolution_sets(
    tmp_path: Path, key: str, line: str, remedy: str
) -> None:
    """The co-evolution would otherwise replace the key's value without a word."""
    file = tmp_path / "mine.toml"
    file.write_text(line)
    files = ["configs/agent0/small_proposer.toml", str(file)]
    with pytest.raises(ConfigError) as in_file:
        plan(config(tmp_path, proposer={"model": "m", "run_files": files}))
    side = {"model": "m", "run_files": files[:1], "settings": tomllib.loads(line)}
    with pytest.raises(ConfigError) as in_table:
        plan(config(tmp_path, executor=side))
    message = "the co-evolution sets this key for each training"
    assert str(in_file.value).startswith(f"{file}: {key}: {message}")
    assert str(in_table.value).startswith(f"executor.settings.{key}: {message}")
    assert remedy in str(in_file.value)
    assert remedy in str(in_table.value)


def test_the_settings_of_a_training_may_not_name_the_model(tmp_path: Path) -> None:
    side = {
        "model": "m",
        "run_files": ["configs/agent0/small_executor.toml"],
        "settings": {"model": {"name": "other"}},
    }
    with pytest.raises(ConfigError, match=r"executor\.settings\.model\.name: .* `executor\.model`"):
        plan(config(tmp_path, executor=side))


def test_a_seed_that_an_older_version_recorded_does_not_matter(tmp_path: Path) -> None:
    """Run files could set `embedded.seed`, which had no effect."""
    planned = plan(config(tmp_path))
    planned.claim()
    file = planned.folder / FILE
    recorded = json.loads(file.read_bytes())
    recorded["executor run"]["embedded"]["seed"] = 5
    file.write_text(json.dumps(recorded))
    planned.claim()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"3", b"null", b'"text"', b'{"v": "\xff"}', b"[" * 100_000, b'{"v":' * 100_000],
    ids=["empty", "list", "number", "null", "text", "not utf-8", "deep list", "deep object"],
)
def test_a_folder_with_another_json_file_is_refused(tmp_path: Path, content: bytes) -> None:
    planned = plan(config(tmp_path))
    planned.folder.mkdir()
    file = planned.folder / FILE
    file.write_bytes(content)
    with pytest.raises(UsageError) as error:
        planned.claim()
    remedy = "restore the file, or give another --name"
    assert str(error.value) == f"{file}: is not a JSON object — {remedy}"
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in RUNS for value in NO_OBJECTS),
        *((f"{key}.embedded", value) for key in RUNS for value in NO_OBJECTS),
        *(("answers", value) for value in (*NO_OBJECTS, "equality")),
        ("payment", 3),
        ("proposer", "model"),
    ],
)
def test_a_recorded_table_must_be_an_object(tmp_path: Path, key: str, value: object) -> None:
    planned = plan(config(tmp_path))
    planned.claim()
    file = planned.folder / FILE
    recorded = json.loads(file.read_bytes())
    table, _, inner = key.partition(".")
    if inner:
        recorded[table][inner] = value
    else:
        recorded[table] = value
    file.write_text(json.dumps(recorded))
    with pytest.raises(UsageError) as error:
        planned.claim()
    remedy = "restore the file, or give another --name"
    assert str(error.value) == f"{file}: {key}: must be a JSON object — {remedy}"


def test_a_recorded_file_must_have_all_keys_and_the_version(tmp_path: Path) -> None:
    planned = plan(config(tmp_path))
    planned.claim()
    file = planned.folder / FILE
    recorded = json.loads(file.read_bytes())
    assert set(RUNS) < set(recorded)
    for key in recorded:
        file.write_text(json.dumps({k: v for k, v in recorded.items() if k != key}))
        message = "v: must be 1" if key == "v" else f"begun with another `{key}`"
        with pytest.raises(UsageError, match=message) as error:
            planned.claim()
        assert "\n" not in str(error.value)
    for version in (2, *NO_OBJECTS):
        file.write_text(json.dumps({**recorded, "v": version}))
        with pytest.raises(UsageError, match=f"{FILE}: v: must be 1 — restore the file"):
            planned.claim()


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ('model = "x"', "model", "'x'"),
        ("model = 3", "model", "3"),
        ('model = ["x"]', "model", "['x']"),
        ('run = "x"', "run", "'x'"),
        ('trainer.optim = "x"', "trainer.optim", "'x'"),
    ],
)
@pytest.mark.parametrize("side", ["proposer", "executor"])
def test_a_table_of_a_run_file_must_be_a_table(
    tmp_path: Path, side: str, line: str, key: str, value: str
) -> None:
    """The co-evolution, or a later run file, would otherwise replace it without a word."""
    file, later = tmp_path / "mine.toml", tmp_path / "later.toml"
    file.write_text(line)
    later.write_text('model.name = "y"\ntrainer.optim.lr = 1e-4')
    files = [f"configs/agent0/small_{side}.toml", str(file), str(later)]
    for run_files in (files[:2], files):
        with pytest.raises(ConfigError) as error:
            plan(config(tmp_path, **{side: {"model": "m", "run_files": run_files}}))
        assert str(error.value) == f"{file}: {key}: must be a table, not {value} — remove it"


def test_a_run_file_may_unset_a_table(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('model = "None"')
    files = ["configs/agent0/small_proposer.toml", str(file)]
    planned = plan(config(tmp_path, proposer={"model": "m", "run_files": files}))
    assert planned.proposer.played.model.name == "m"
