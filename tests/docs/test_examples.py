"""Each file of `examples/` does what it says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from air.cli.main import main
from air.sandbox.conformance import CHECKS
from tests.docs.blocks import PAGES, ROOT
from tests.docs.conftest import MODEL, RUN
from tests.fork_server import of_this_run

EXAMPLES = ROOT / "examples"


def run(script: str, *args: str, cwd: Path) -> str:
    argv = ["python", str(EXAMPLES / script), *args]
    result = of_this_run().run(argv, cwd=cwd, env=os.environ, seconds=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("provider", ["process", pytest.param("docker", marks=pytest.mark.docker)])
def test_boxes_alone(provider: str, tmp_path: Path) -> None:
    lines = run("boxes_alone.py", provider, cwd=tmp_path).splitlines()
    assert lines == [
        "sums: 0 7 735 71071 7142142 714264285",
        "failed: 3 sorry",
        "timed out: True begun",
        "cut: True True",
        "fork: ['shared', 'first']",
        "fork: ['shared', 'second']",
    ]


def test_train_from_python(place: Path) -> None:
    flags = ["--steps", "2", "--episodes", "4", "--tokens", "8", "--runtime", "subprocess"]
    output = run("train_from_python.py", MODEL, *flags, cwd=place)
    assert "step 2: reward" in output
    (checkpoint,) = place.glob("outputs/*/checkpoints/step_2")
    assert (checkpoint / "config.json").is_file()
    assert str(checkpoint.relative_to(place)) in output


def test_leave_one_out(tmp_path: Path) -> None:
    """Worked out by hand: 1 − (0 + 0.5) / 2, 0 − (1 + 0.5) / 2 and 0.5 − (1 + 0) / 2, halved."""
    assert run("leave_one_out.py", cwd=tmp_path).splitlines() == [
        "reward 1.0: advantage +0.375",
        "reward 0.0: advantage -0.375",
        "reward 0.5: advantage +0.000",
        "reward None: advantage +0.000",
    ]


def test_your_own_tools(tmp_path: Path) -> None:
    lines = run("your_own_tools.py", cwd=tmp_path).splitlines()
    assert lines[0] == "convert(value, unit, to): Converts a length."
    assert lines[-8:] == [
        "episode 1: 2 items: 4 euros",
        "episode 2: 2 items: 4 euros",
        "success: 42.1648 km",
        "error: A length is not negative.",
        'error: Wrong arguments of convert: unit must be one of: "m", "km", "mile".',
        "success: 42.1648128",
        "success: 1 lines",
        "finish: A marathon has about 42 km.",
    ]


@pytest.mark.parametrize("provider", ["process", pytest.param("docker", marks=pytest.mark.docker)])
def test_the_custom_task_scores_as_recorded(
    provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "tasks",
        "--task-root",
        str(EXAMPLES / "tasks"),
        "check",
        "waves",
        "--provider",
        provider,
    ]
    assert main(argv) == 0, capsys.readouterr().out


def test_the_notebook_runs(place: Path) -> None:
    """Its code cells, one after another, as Jupyter would; it holds no outputs."""
    notebook = json.loads((EXAMPLES / "read_a_run.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    space: dict[str, object] = {"__name__": "notebook"}
    assert Path("outputs", RUN).is_dir()
    assert "RUN" not in os.environ
    for number, cell in enumerate(cells):
        assert cell["outputs"] == []
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)
    assert len(space["episodes"]) == 6  # type: ignore[arg-type]
    chart = space["rewards"].to_dict()  # type: ignore[attr-defined]
    assert chart["encoding"]["y"]["field"] == "reward"
    assert space["curve"].to_dict()["encoding"]["x"]["field"] == "step"  # type: ignore[attr-defined]


def test_every_example_is_listed() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb"), *EXAMPLES.glob("tasks/*")):
        assert f"`{path.relative_to(EXAMPLES)}" in text


def test_every_test_that_a_page_names_exists() -> None:
    """`file.py::test` is a test of that file, and `conformance::name` a check of the conformance suite."""
    tests = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    checks = {check.name for check in CHECKS}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert tests >= set(re.findall(r"`(test_\w+\.py)::(\w+)`", text)), page
        assert checks >= set(re.findall(r"`conformance::([\w-]+)`", text)), page
