"""What a matrix trains and plays, and what of its settings may change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air import paths
from air.env.config import DEFAULT_TURNS
from air.errors import AirError, ConfigError, UsageError
from air.train.config import overrides
from air.train.config.matrix_config import MatrixConfig
from air.train.matrix.plan import Plan, plan

TINY = paths.shipped("configs") / "matrix" / "tiny.toml"


def tiny(folder: Path, **changes: Any) -> Plan:
    sources = overrides.read_files([f"@{TINY}"])
    overrides.put(sources, {"output_dir": str(folder), **changes}, "test")
    return plan(overrides.build(MatrixConfig, sources))


def test_each_row_and_seed_is_an_ordinary_run_with_the_rows_tasks(tmp_path: Path) -> None:
    planned = tiny(tmp_path)
    assert [str(one) for one in planned.trained] == [
        "base",
        *(f"{row}, seed {seed}" for row in ("arithmetic", "shop") for seed in (0, 1)),
    ]
    shop = planned.trained[-1].config
    assert shop.folder == tmp_path / "matrix-tiny" / "runs" / "shop-seed1"
    assert (shop.embedded.seed, shop.max_steps, shop.orchestrator.eval) == (1, 2, None)
    assert shop.orchestrator.train.source[0].env.taskset.tasks == ["question:shop-level1"]
    cell = planned.evaluation(planned.trained[1], "model", "game:sokoban4x5")
    assert cell.folder == tmp_path / "matrix-tiny/cells/arithmetic-seed0/game-sokoban4x5"
    assert cell.settings.envs[0].taskset.tasks == ["game:sokoban4x5"]


def test_research_tasks_have_turns_although_worlds_limit_their_own(tmp_path: Path) -> None:
    settings = {"max_steps": 40}
    planned = tiny(tmp_path, run_files=["configs/grl/small.toml"], settings=settings)
    turns = [
        planned.evaluation(planned.trained[1], "model", column).settings.envs[0].agent.max_turns
        for column in ("game:sokoban4x5", "titanic")
    ]
    assert turns == [None, DEFAULT_TURNS]


def test_cells_may_be_added_and_what_they_depend_on_may_not_change(tmp_path: Path) -> None:
    tiny(tmp_path).claim()
    tiny(tmp_path, seeds=[0, 1, 2], columns=["question:gsm8k"]).claim()
    tiny(tmp_path, rows={"both": ["question:gsm8k", "question:shop"]}).claim()
    tiny(tmp_path, evaluation={"episodes": 9}, base=False).claim()
    for changes, key in (
        ({"settings": {"max_steps": 3}}, "settings.max_steps"),
        ({"rows": {"shop": ["question:shop"]}}, "rows.shop"),
        ({"evaluation": {"temperature": 0.5}}, "evaluation.temperature"),
    ):
        with pytest.raises(UsageError, match=rf"begun with another `{key}`.*give another --name"):
            tiny(tmp_path, **changes).claim()
    tiny(tmp_path).claim()


def test_a_setting_that_is_newer_than_the_matrix_counts_only_if_it_is_set(tmp_path: Path) -> None:
    """A matrix goes on under a later version of air, whose run files have more keys."""
    changes = {"settings": {"trainer": {"optim": {"max_norm": 0.5}}}}
    file = tmp_path / "matrix-tiny" / "matrix.json"
    for planned, accepted in ((tiny(tmp_path), True), (tiny(tmp_path, **changes), False)):
        planned.claim()
        identity = json.loads(file.read_text())
        assert identity["settings"]["trainer"]["optim"].pop("max_norm")
        assert identity["settings"]["orchestrator"]["train"]["source"][0]["env"].pop("credit")
        file.write_text(json.dumps(identity))
        if accepted:
            planned.claim()
        else:
            with pytest.raises(UsageError, match=r"another `settings\.trainer\.optim\.max_norm`"):
                planned.claim()
        file.unlink()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "matrix-tiny"
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="something else"):
        tiny(tmp_path).claim()
    for content in ("[]", "3", "{", "[" * 100_000, '{"v":' * 100_000):
        (folder / "matrix.json").write_text(content)
        with pytest.raises(UsageError, match="not the file of a matrix"):
            tiny(tmp_path).claim()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": {"base": ["titanic"]}}, "not 'base'"),
        ({"rows": {"a/b": ["titanic"]}}, "the row name 'a/b'"),
        ({"rows": {"shop": []}}, "has no task"),
        ({"seeds": [1, 1]}, "seeds has a value twice"),
        ({"seeds": [0, -1]}, "`seeds`: -1 is below 0; use whole numbers"),
        ({"columns": ["question:shop", "question-shop"]}, "two columns would have the folder"),
        ({"name": "../x"}, "it names a folder"),
        ({"run_files": ["configs/nothing.toml"]}, "no such file"),
        ({"run_files": ["configs/mlgym/several.toml"]}, "exactly one"),
        ({"settings": {"max_step": 3}}, "did you mean `max_steps`"),
        ({"settings": {"output_dir": "x"}}, r"settings\.output_dir: .*--output-dir"),
        ({"settings": {"output-dir": "x"}}, "there is no key `output-dir`"),
        ({"settings": {"embedded": {"seed": 7}}}, r"settings\.embedded\.seed: .*--seeds"),
        ({"settings": {"run": {"name": "x"}}}, r"settings\.run\.name: .*--name"),
        ({"settings": {"resume": {"step": 1}}}, r"settings\.resume: .*continues a matrix"),
    ],
)
def test_settings_that_make_no_matrix_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirError, match=message) as error:
        tiny(tmp_path, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "line", "remedy"),
    [
        ("output_dir", 'output_dir = "x"', "--output-dir"),
        ("run.name", 'run.name = "x"', "--name"),
        ("embedded.seed", "embedded.seed = 0", "--seeds"),
        ("resume", "resume.step = 1", "continues a matrix"),
    ],
)
def test_a_run_file_may_not_set_what_the_matrix_sets(
    tmp_path: Path, key: str, line: str, remedy: str
) -> None:
    """The matrix would otherwise replace the key's value without a word."""
    file = tmp_path / "mine.toml"
    file.write_text(line)
    with pytest.raises(ConfigError) as error:
        tiny(tmp_path, run_files=["configs/questions/small.toml", str(file)])
    text = str(error.value)
    assert text.startswith(f"{file}: {key}: the matrix sets this key for each training — ")
    assert remedy in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('run = "x"', "run"),
        ('model = "x"', "model"),
        ('trainer = "x"', "trainer"),
        ('trainer.optim = "x"', "trainer.optim"),
    ],
)
def test_a_table_of_a_run_file_must_be_a_table(tmp_path: Path, line: str, key: str) -> None:
    """The matrix, its table `settings` or a later run file would otherwise replace the text by a table."""
    file, later = tmp_path / "mine.toml", tmp_path / "later.toml"
    file.write_text(line)
    later.write_text('model.name = "y"\ntrainer.optim.lr = 1e-4')
    files = ["configs/questions/small.toml", str(file), str(later)]
    settings = {"model": {"name": "y"}, "trainer": {"optim": {"lr": 1e-4}}}
    for changes in (
        {"run_files": files[:2]},
        {"run_files": files},
        {"run_files": files[:2], "settings": settings},
    ):
        with pytest.raises(ConfigError) as error:
            tiny(tmp_path, **changes)
        assert str(error.value) == f"{file}: {key}: must be a table, not 'x' — remove it"


def test_a_run_file_may_unset_what_the_matrix_sets(tmp_path: Path) -> None:
    (tmp_path / "set.toml").write_text('output_dir = "x"')
    (tmp_path / "unset.toml").write_text('output_dir = "None"')
    files = ["configs/questions/small.toml", *(f"{tmp_path}/{n}.toml" for n in ("set", "unset"))]
    planned = tiny(tmp_path, run_files=files)
    assert planned.trained[-1].config.output_dir == tmp_path / "matrix-tiny" / "runs"


def test_an_unknown_task_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, AirError), match="nothing"):
        tiny(tmp_path, columns=["game:nothing"]).check_tasks()
