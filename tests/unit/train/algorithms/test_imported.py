"""An advantage estimator of a module outside the package, named by a run file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from air import train
from air.errors import ConfigError
from air.train.algorithms import Credit, ScoredGroup, ScoredPart
from air.train.loop.samples import samples
from tests.unit.train.loop.test_samples import four_and_one, group, made_of
from tests.unit.train.test_from_python import SETTINGS

MODULE = """
def leave_one_out(rewards, scale=1.0):
    scored = [r for r in rewards if r is not None]
    total, others = sum(scored), len(scored) - 1
    return [0.0 if r is None else scale * (r - (total - r) / others) for r in rewards]

def too_few(rewards):
    return [0.0]

def endless(rewards):
    return [float("inf") for _ in rewards]

number = 3
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that is importable for one test."""
    module = f"estimators_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return module


def configured(import_path: str, **kwargs: Any) -> Any:
    estimator = {"import_path": import_path, "kwargs": kwargs}
    return train.load(SETTINGS, {"embedded": {"estimator": estimator}})


def test_its_numbers_reach_the_samples(name: str) -> None:
    """The episodes earn 0.4 and 0.6: A = 0.4 − 0.6 and 0.6 − 0.4, three times that by `scale`."""
    config = configured(f"{name}:leave_one_out", scale=3.0)
    estimator = config.embedded.estimator.load()
    assert estimator([1.0, None, 0.5, 0.0]) == [2.25, 0.0, 0.0, -2.25]
    whole = samples([group(*four_and_one())], config.algorithm(), 1.0)
    assert [made_of(s) for s in whole] == [[pytest.approx(-0.6)], [pytest.approx(0.6)]]


def test_without_it_the_algorithm_decides() -> None:
    algorithm = train.load(SETTINGS).algorithm()
    found = algorithm(ScoredGroup([[ScoredPart(1.0, tokens=3)], [ScoredPart(0.0, tokens=2)]]))
    assert found == [[Credit(0.5)], [Credit(-0.5)]]


@pytest.mark.parametrize("function", ["too_few", "endless"])
def test_what_it_returns_must_be_one_finite_number_for_each_reward(
    name: str, function: str
) -> None:
    estimator = configured(f"{name}:{function}").embedded.estimator.load()
    with pytest.raises(ConfigError, match=rf"import_path: '{name}:{function}' returned .* finite"):
        estimator([1.0, 0.0])


@pytest.mark.parametrize(
    ("function", "kwargs", "words"),
    [
        ("leave_two_out", {}, "import_path`: .* cannot be imported: .* 'leave_two_out'"),
        ("number", {}, "import_path`: .* is not a function"),
        ("leave_one_out", {"factor": 2}, "estimator`: .* unexpected keyword argument 'factor'"),
    ],
)
def test_a_wrong_path_is_one_line_with_file_and_key(
    name: str, tmp_path: Path, function: str, kwargs: dict[str, int], words: str
) -> None:
    file = tmp_path / "mine.toml"
    lines = [f"{key} = {value}" for key, value in kwargs.items()]
    text = [f'[embedded.estimator]\nimport_path = "{name}:{function}"']
    file.write_text("\n".join([*text, "[embedded.estimator.kwargs]", *lines]))
    with pytest.raises(ConfigError, match=words) as caught:
        train.load(SETTINGS, file)
    assert str(caught.value).startswith(f"{file}: `embedded.estimator")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("leave", "'leave' must be of the form `module:name`"),
        ("no.such:leave", "cannot be imported: No module named 'no' — .* on PYTHONPATH"),
    ],
)
def test_a_path_without_a_module(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"settings: `embedded.estimator.import_path`: .*{words}"):
        configured(path)
