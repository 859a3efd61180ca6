"""Harbor tasks by the commands: played by hand and by a model, undone, shown and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.cli.main import main
from air.testing import ScriptedServer, replies
from air.trajectories import load
from tests.docker.harbor.test_steps import make
from tests.e2e.commands.by_hand import shell

__all__ = ["make"]
pytestmark = pytest.mark.docker
SCRIPT = """\
rm set-one; touch /logs/artifacts/x && echo done > one.txt
submit
ls; rm one.txt
:undo
:undo
:undo
ls set-one
touch /logs/artifacts/x && rm set-one && echo done > one.txt && ls
:undo
rm set-one /logs/artifacts/x
:expect No such file
:undo
ls set-one && echo done > one.txt
submit
:expect Step two.
echo done > two.txt
:undo
ls set-one one.txt set-two && echo done > two.txt
submit
:expect reward +1.0000
:save by-hand.jsonl
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_task_in_steps_is_played_by_hand_undone_and_shown(
    make: object, capsys: pytest.CaptureFixture[str]
) -> None:
    make()  # type: ignore[operator]
    shell(SCRIPT, "harbor:task", "--max-turns", "0")
    assert main(["show", "by-hand.jsonl"]) == 0
    assert "harbor:task" in capsys.readouterr().out
    by_hand = load(Path("by-hand.jsonl"))
    assert [v.score for v in by_hand.validations] == [1.0, 1.0]


@pytest.mark.parametrize("verifier", ["separate", "shared"])
def test_a_recorded_episode_is_replayed_and_names_a_forgeable_reward(
    make: object, verifier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make()  # type: ignore[operator]
    script = "echo done > one.txt\nsubmit\necho done > two.txt\nsubmit\n:save e.jsonl\n"
    shell(script, "harbor:task", "--env", f"taskset.harbor.verifier={verifier}")
    assert main(["replay", "e.jsonl"]) == 0
    assert "1 of 1 matched" in capsys.readouterr().out
    assert main(["show", "e.jsonl"]) == 0
    assert ("trust shared" in capsys.readouterr().out) == (verifier == "shared")


def test_the_command_eval_plays_every_task_of_a_folder(
    make: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make()  # type: ignore[operator]
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    solved = [f"Now.\n```bash\necho done > {name}.txt\nsubmit\n```" for name in ("one", "two")]
    with ScriptedServer(replies(*solved)) as server:
        argv = ["eval", server.url, "--model-name", "scripted", "--tasks", "harbor:."]
        assert main([*argv, "--episodes", "1", "--record-dir", "episodes"]) == 0
    assert "harbor:./task" in capsys.readouterr().out
    [episode] = [load(path) for path in Path("episodes", "trajectories").glob("*.jsonl")]
    assert episode.end is not None
    assert episode.end.reward == 1.0
    assert main(["replay", "episodes"]) == 0


def test_a_set_of_tasks_cannot_be_played_by_hand_at_once(
    make: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make()  # type: ignore[operator]
    (tmp_path / "task").rename(tmp_path / "a")
    make()  # type: ignore[operator]
    shell("", "harbor:.", code=2)
    assert "names 2 tasks — name one, such as harbor:./a" in capsys.readouterr().err
    shell(":quit\n", "harbor:a")
