"""Trajectories of MLGym and verifiers, read as ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import ConfigError, InfrastructureError
from air.rewards.delta import DeltaReward
from air.tasks.spec import RewardScale
from air.trajectories import load
from air.trajectories.conversations import messages
from air.trajectories.importers import About, import_mlgym, import_verifiers
from air.trajectories.outcome import read_outcome

SCALE = RewardScale(direction="higher", baseline=2.0, target=3.0)


def about(_: str) -> About:
    return About("Score", "higher", 2.0, SCALE.model_dump(mode="json"), DeltaReward(SCALE))


def turn(action: str, observation: str) -> dict[str, Any]:
    """A turn as MLGym writes it."""
    return {
        "action": action,
        "observation": observation,
        "response": f"DISCUSSION\nSo.\n\n```\n{action}```",
        "thought": "DISCUSSION\nSo.\n\n",
        "state": "{}",
        "execution_time": 0.25,
    }


def scored(score: float) -> str:
    return (
        "Your code produced a valid submission artefact at /home/agent/workspace/target.py.\n"
        f"Baseline Score: {{'Score': 2.1}}\nEvaluation Score: {{'Score': {score}}}"
    )


@pytest.fixture
def traj(tmp_path: Path) -> Path:
    """A `.traj` in MLGym's layout: three gradings, one of them without a score, an autosubmission."""
    data = {
        "environment": "mlgym_main",
        "trajectory": [
            turn("ls -la\n", "target.py"),
            turn("validate\n", scored(2.25)),
            turn("validate\n", "Error: no artefact"),
            turn("validate\n", scored(2.5)),
        ],
        "history": [
            {"role": "system", "content": "SETTING", "agent": "primary"},
            {"role": "user", "content": "TASK", "agent": "primary"},
            {"role": "assistant", "content": "DISCUSSION", "agent": "primary"},
        ],
        "info": {
            "exit_status": "autosubmission (max_steps)",
            "score": [{"Score": 2.25}, {"Score": 2.5}, {"Score": 2.75}],
        },
    }
    folder = tmp_path / "some-model__prisonersDilemma__run_0"
    folder.mkdir()
    path = folder / "prisonersDilemma.traj"
    path.write_text(json.dumps(data))
    return path


def test_mlgym(traj: Path, tmp_path: Path) -> None:
    path = import_mlgym(traj, tmp_path / "out", about)
    one = load(path)
    assert one.start is not None
    assert (one.start.task, one.start.model) == ("mlgym:prisonersDilemma", "some-model")
    assert (one.start.system, one.start.prompt) == ("SETTING", "TASK")
    assert [s.action for s in one.steps] == ["ls -la", "validate", "validate", "validate"]
    assert one.steps[0].shown == "target.py"
    assert [v.score for v in one.validations] == [2.25, None, 2.5, 2.75]
    assert [v.turn for v in one.validations] == [2, 3, 4, 4]
    assert [v.delta for v in one.validations] == [0.25, 0.0, 0.25, 0.25]
    assert one.validations[1].problem == "Error: no artefact"
    assert one.validations[3].automatic
    assert one.end is not None
    assert one.end.reward == 0.75
    # It can be reported, and is not there twice.
    assert read_outcome(path).scores == (2.25, None, 2.5, 2.75)
    with pytest.raises(InfrastructureError, match="cannot record"):
        import_mlgym(traj, tmp_path / "out", about)


def test_mlgym_without_a_checkout(
    traj: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["trajectories", "import", str(traj), "--out", str(out)]
    assert main([*command, "--metric", "accuracy"]) == 2
    assert "has a score without 'accuracy'" in capsys.readouterr().err
    for left in out.glob("*"):
        left.unlink()
    assert main([*command, "--metric", "score"]) == 0
    (path,) = out.glob("*.jsonl")
    start = load(path).start
    assert start is not None
    assert start.baseline == 2.1
    assert main(["replay", str(path)]) == 2
    assert "was imported from mlgym" in capsys.readouterr().err


def test_another_file_is_no_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "x.traj"
    path.write_text('{"trajectory": 1}')
    with pytest.raises(ConfigError, match="is no trajectory of MLGym"):
        import_mlgym(path, tmp_path / "out", about)
    path.write_text("not json")
    with pytest.raises(ConfigError, match="not JSON"):
        import_mlgym(path, tmp_path / "out", about)


def node(role: str, content: Any, parent: int | None, **fields: Any) -> dict[str, Any]:
    """A node as verifiers writes it."""
    return {"message": {"role": role, "content": content}, "parent": parent, **fields}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A `traces.jsonl` with one trace of two branches, and a half-written line."""
    nodes = [
        node("system", "S", None),
        node("user", [{"type": "text", "text": "P"}], 0),
        node("assistant", "dropped", 1, sampled=True),
        node("assistant", "R1", 1, sampled=True, timestamp=12.0),
        node("user", "O1", 3),
        node("assistant", "R2", 4, sampled=True),
    ]
    nodes[3]["message"]["reasoning_content"] = "Hm."
    trace = {
        "id": "t1",
        "nodes": nodes,
        "calls": [
            {
                "node": 3,
                "usage": {"prompt_tokens": 4, "completion_tokens": 2},
                "time": {"start": 1, "end": 2.5},
            }
        ],
        "task": {"type": "T", "data": {"name": "gsm8k/1"}},
        "agent": {"config": {"model": "m"}},
        "rewards": {"right": {"score": 0.5, "weight": 2.0}, "none": None},
        "metrics": {"turns": 2.0},
        "ok": True,
        "stop_condition": "done",
    }
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({"id": "e1", "traces": [trace]}) + '\n{"id": "e2", "tra')
    return path


def test_verifiers(traces: Path, tmp_path: Path) -> None:
    (path,) = import_verifiers(traces, tmp_path / "out")
    one = load(path)
    assert one.start is not None
    assert (one.start.task, one.start.model, one.start.origin) == ("gsm8k/1", "m", "verifiers")
    with pytest.raises(ConfigError, match="played by harness 'verifiers'"):
        messages(path)
    assert [m["content"] for m in one.messages()] == ["S", "P", "R1", "O1", "R2", ""]
    first, second = one.steps
    assert (first.reasoning, second.reasoning) == ("Hm.", None)
    assert first.model_seconds == 1.5
    assert first.tokens is not None
    assert (first.tokens.prompt, first.tokens.completion) == (4, 2)
    assert second.tokens is not None
    assert second.tokens.nodes == (4, 6)
    assert one.end is not None
    assert (one.end.reward, one.end.terms, one.end.why) == (1.0, {"right": 1.0}, "done")
    assert (path.parent / one.end.trace_file).resolve() == traces.resolve()


def test_replies_that_a_prompt_repeats_without_their_reasoning_are_turns(tmp_path: Path) -> None:
    """As with Qwen3's template: the second and the third prompt are branches of their own."""
    nodes = [
        node("user", "P", None),
        node("assistant", "R", 0, sampled=True),
        node("assistant", "R", 0),
        node("user", "O1", 2),
        node("assistant", "R", 3, sampled=True),
        node("assistant", "R", 3),
        node("user", "O2", 5),
        node("assistant", "End.", 6, sampled=True),
    ]
    for number in (1, 4):
        nodes[number]["message"]["reasoning_content"] = f"Hm {number}."
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({"id": "t1", "nodes": nodes}) + "\n")
    (imported,) = import_verifiers(path, tmp_path / "out")
    one = load(imported)
    assert one.start is not None
    assert one.start.prompt == "P"
    assert [(s.reply, s.reasoning, s.shown) for s in one.steps] == [
        ("R", "Hm 1.", "O1"),
        ("R", "Hm 4.", "O2"),
        ("End.", None, ""),
    ]


def test_empty_lines_at_the_end_are_skipped(traces: Path, tmp_path: Path) -> None:
    with traces.open("a") as file:
        file.write("\n\n\n")
    assert import_verifiers(traces, tmp_path / "out")


def test_a_file_without_traces_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    with pytest.raises(ConfigError, match="is no episode of verifiers"):
        import_verifiers(path, tmp_path / "out")


@pytest.mark.parametrize("name", ["../../esc/x", "/abs", "", "a/b", ".hidden", "x" * 300, None])
def test_an_id_that_cannot_name_a_file_is_refused(name: Any, tmp_path: Path) -> None:
    path = tmp_path / "in" / "traces.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"id": name, "nodes": []}) + "\n")
    with pytest.raises(ConfigError, match=r"traces\.jsonl"):
        import_verifiers(path, tmp_path / "in" / "deep" / "out")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["traces.jsonl"]


def test_every_character_may_stand_in_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    trace = {"id": "t1", "nodes": [node("user", "a\u2028b\u0085c", None)]}
    path.write_text(json.dumps(trace, ensure_ascii=False) + "\n")
    (file,) = import_verifiers(path, tmp_path / "out")
    start = load(file).start
    assert start is not None
    assert start.prompt == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    "odd", [{"calls": [1]}, {"rewards": {"r": 1}}, {"errors": [{}]}, {"timing": {"start": "x"}}]
)
def test_a_failed_import_leaves_nothing(traces: Path, tmp_path: Path, odd: dict[str, Any]) -> None:
    trace = json.loads(traces.read_text().splitlines()[0])["traces"][0]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(trace | {"ok": True} | odd) + "\n")
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"bad\.jsonl"):
        import_verifiers(bad, out)
    assert not list(out.glob("*"))
    import_verifiers(traces, out)


def test_numbers_that_are_not_finite(traj: Path, tmp_path: Path) -> None:
    data = json.loads(traj.read_text())
    data["info"]["score"][2] = {"Score": 2.75, "loss": float("nan")}
    traj.write_text(json.dumps(data))
    assert load(import_mlgym(traj, tmp_path / "out", about)).validations[-1].metrics == {
        "Score": 2.75
    }
    data["info"]["score"][2] = {"Score": float("inf")}
    traj.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="not finite"):
        import_mlgym(traj, tmp_path / "out", about)
    assert len(list((tmp_path / "out").glob("*"))) == 1


def test_json_that_is_too_deep_is_one_line(tmp_path: Path) -> None:
    for name in ("x.traj", "x.jsonl"):
        path = tmp_path / name
        path.write_text("[" * 100_000 + "]" * 100_000 + "\n")
        with pytest.raises(ConfigError, match="not JSON"):
            (
                import_verifiers(path, tmp_path)
                if name == "x.jsonl"
                else import_mlgym(path, tmp_path, about)
            )
        with pytest.raises(ConfigError, match="not JSON"):
            load(path)
