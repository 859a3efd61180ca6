"""ATIF documents: what we write is valid, and every rule of the format catches what breaks it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.errors import ConfigError
from air.trajectories import Recorder, load
from air.trajectories.atif import RULES, VERSIONS, problems, to_atif

Document = dict[str, Any]
V1 = Path(__file__).with_name("v1.jsonl")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trajectory with a trace beside it."""
    node = {"token_ids": [], "mask": [], "logprobs": []}
    reply = {"token_ids": [5, 6, 7], "mask": [False, True, True], "logprobs": [-0.5, -0.25]}
    (tmp_path / "traces").mkdir()
    trace = {"id": "t1", "nodes": [node, node, reply]}
    (tmp_path / "traces" / "t1.jsonl").write_text(json.dumps({"traces": [trace]}) + "\n")
    with Recorder(tmp_path, "e") as recorder:
        recorder.write(
            "start", task="titanic", episode="e", trace="t1", system="S", prompt="P", model="m"
        )
        recorder.write(
            "step",
            turn=1,
            reply="R1",
            reasoning="Hm.",
            action="ls\nvalidate",
            call={"script": "ls", "ending": "validate"},
            observation="all of it",
            shown="a[…]t\n[3 turns left]",
            tokens={"nodes": [0, 3], "prompt": 10, "completion": 2},
        )
        recorder.write("validate", turn=1, score=0.5, phi=0.1, anchor=0.0, delta=0.1)
        recorder.write("step", turn=2, reply="what?", shown="Format error", problem="format")
        recorder.write(
            "end", ok=True, reward=0.1, terms={"delta": 0.1}, trace_file="traces/t1.jsonl"
        )
    return tmp_path / "e.jsonl"


def test_a_document_holds_the_whole_episode_and_is_valid(path: Path) -> None:
    document = to_atif(load(path))
    assert problems(document) == []
    assert document["schema_version"] == "ATIF-v1.8"
    assert [s["source"] for s in document["steps"]] == ["system", "user", "agent", "agent"]
    third = document["steps"][2]
    assert [s.get("reasoning_content") for s in document["steps"]] == [None, None, "Hm.", None]
    assert [c["function_name"] for c in third["tool_calls"]] == ["bash", "validate"]
    (result,) = third["observation"]["results"]
    assert result["content"] == "a[…]t\n[3 turns left]"
    assert result["extra"]["in_full"] == "all of it"
    assert third["extra"]["air"]["validations"][0]["score"] == 0.5
    assert document["final_metrics"]["total_completion_tokens"] == 2
    assert document["final_metrics"]["extra"]["reward"] == 0.1
    assert "completion_token_ids" not in third["metrics"]


def test_tokens_come_out_of_the_trace(path: Path) -> None:
    document = to_atif(load(path), tokens=True)
    assert problems(document) == []
    metrics = document["steps"][2]["metrics"]
    assert metrics["completion_token_ids"] == [6, 7]
    assert metrics["logprobs"] == [-0.5, -0.25]
    (path.parent / "traces" / "t1.jsonl").unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        to_atif(load(path), tokens=True)


def test_version_1_is_exported_too() -> None:
    document = to_atif(load(V1))
    assert problems(document) == []
    assert document["steps"][2]["tool_calls"][0]["function_name"] == "action"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_can_be_written(path: Path, version: str) -> None:
    document = to_atif(load(path), tokens=True, version=version)
    assert problems(document) == []
    assert document["schema_version"] == f"ATIF-v{version}"
    assert ("trajectory_id" in document) == (version >= "1.7")
    assert ("extra" in document["steps"][2]["observation"]["results"][0]) == (version >= "1.7")


def test_an_episode_of_a_world(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    with Recorder(tmp_path, "w") as recorder:
        recorder.write("start", task="game:x", episode="w", prompt="P", tools=[tool])
        recorder.write(
            "step", turn=1, reply="up", action="up", call={"answer": "up"}, shown="#.", reward=0.5
        )
        calls = [
            {"id": "a1", "name": "look", "arguments": '{"at": [1, 2]}'},
            {"id": "a1", "name": "look", "arguments": "not JSON"},
            {"name": "look"},
        ]
        recorder.write("step", turn=2, reply="", tool_calls=calls, action="look", shown="#")
        used = {"name": "go", "args": [], "arguments": {"to": "b"}}
        recorder.write(
            "step", turn=3, reply="go", action="go", call={"tool": used}, reward=1.0, done=True
        )
        recorder.write("end", ok=True, reward=1.5, facts={"won": 1.0})
    document = to_atif(load(tmp_path / "w.jsonl"))
    assert problems(document) == []
    assert document["agent"]["tool_definitions"] == [tool]
    first, second, third = (one for one in document["steps"] if one["source"] == "agent")
    assert first["tool_calls"][0]["arguments"] == {"text": "up"}
    assert first["extra"]["air"]["reward"] == 0.5
    assert [(c["tool_call_id"], c["arguments"]) for c in second["tool_calls"]] == [
        ("call_2_0", {"at": [1, 2]}),  # a name that two calls have is replaced
        ("call_2_1", {"text": "not JSON"}),
        ("call_2_2", {}),
    ]
    assert (third["tool_calls"][0]["function_name"], third["tool_calls"][0]["arguments"]) == (
        "go",
        {"to": "b"},
    )
    assert third["extra"]["air"]["done"] is True
    assert document["final_metrics"]["extra"]["facts"] == {"won": 1.0}


AUDIO = {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav"}}


def test_parts_need_a_version_that_has_them(path: Path) -> None:
    def with_parts(version: str, part: Document) -> list[str]:
        document = to_atif(load(path), version=version)
        document["steps"][1]["message"] = [{"type": "text", "text": "x"}, part]
        return problems(document)

    image = {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
    assert with_parts("1.8", AUDIO) == []
    assert with_parts("1.6", image) == []
    assert "does not know" in with_parts("1.7", AUDIO)[0]
    assert "new in 1.6" in with_parts("1.5", image)[0]
    assert "is no image" in with_parts("1.8", {**image, "source": AUDIO["source"]})[0]
    assert "no field of a part" in with_parts("1.8", {**image, "url": "x"})[0]


def step(n: int, **fields: Any) -> Callable[[Document], None]:
    return lambda document: document["steps"][n].update(fields)


BROKEN: list[tuple[str, Callable[[Document], None]]] = [
    ("fields", lambda d: d.update(surprise=1)),
    ("fields", step(0, note="x")),
    ("fields", lambda d: d.pop("agent")),
    ("fields", lambda d: d["agent"].pop("version")),
    ("fields", step(2, message=None)),
    ("fields", lambda d: d["steps"][2]["tool_calls"][0].update(arguments="ls")),
    ("fields", lambda d: d["steps"][2]["metrics"].update(prompt_tokens=1.5)),
    ("fields", lambda d: d["steps"][2]["metrics"].update(prompt_tokens=True)),
    ("fields", step(2, observation={})),
    ("fields", lambda d: d["steps"].append("x")),
    ("schema_version", lambda d: d.update(schema_version="ATIF-v2.0")),
    ("since", lambda d: d.update(schema_version="ATIF-v1.6")),
    ("parts", step(1, message=[{"type": "video"}])),
    ("parts", step(1, message=[{"type": "text"}])),
    ("step_id", lambda d: d.update(steps=[])),
    ("step_id", step(2, step_id=9)),
    ("source", step(1, source="tool")),
    ("agent only", step(1, metrics={})),
    ("agent only", step(0, tool_calls=[])),
    ("timestamp", step(1, timestamp="yesterday")),
    (
        "tool_call_id",
        lambda d: d["steps"][2]["observation"]["results"][0].update(source_call_id="c9"),
    ),
    (
        "tool_call_id",
        lambda d: d["steps"][2]["tool_calls"].append(d["steps"][2]["tool_calls"][0]),
    ),
    ("llm_call_count", step(2, llm_call_count=-1)),
    ("llm_call_count", step(2, llm_call_count=0)),
    ("token counts", lambda d: d["steps"][2]["metrics"].update(logprobs=[-1.0])),
    ("token counts", lambda d: d["steps"][2]["metrics"].update(completion_token_ids=[1, 2, 3])),
    ("subagents", lambda d: d.update(subagent_trajectories=[{"steps": []}])),
    (
        "subagents",
        lambda d: d["steps"][2]["observation"]["results"][0].update(
            subagent_trajectory_ref=[{"session_id": "s"}]
        ),
    ),
]


@pytest.mark.parametrize(("rule", "spoil"), BROKEN)
def test_every_rule_catches_what_breaks_it(
    path: Path, rule: str, spoil: Callable[[Document], None]
) -> None:
    document = copy.deepcopy(to_atif(load(path)))
    spoil(document)
    found = problems(document)
    assert found
    assert all(one.startswith(f"{rule}: ") for one in found), found


def test_every_rule_has_such_a_case() -> None:
    assert {rule for rule, _ in BROKEN} == {rule.name for rule in RULES}


def test_the_command_writes_documents_and_conversations(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["trajectories", "export", str(path), "--to", "atif", "--out", str(out)]) == 0
    assert problems(json.loads((out / "e.json").read_text())) == []
    older = ["trajectories", "export", str(path), "--to", "atif", "--out", str(out)]
    assert main([*older, "--atif-version", "1.6"]) == 0
    assert json.loads((out / "e.json").read_text())["schema_version"] == "ATIF-v1.6"
    assert main([*older, "--atif-version", "9"]) == 2
    assert "known: 1.4, 1.5" in capsys.readouterr().err
    sft = out / "sft.jsonl"
    assert main(["trajectories", "export", str(path), "--to", "sft", "--out", str(sft)]) == 0
    (line,) = sft.read_text().splitlines()
    assert json.loads(line)["messages"][2]["reasoning_content"] == "Hm."
    assert [m["content"] for m in json.loads(line)["messages"]] == [
        "S",
        "P",
        "R1",
        "a[…]t\n[3 turns left]",
        "what?",
    ]
    capsys.readouterr()
    none = str(tmp_path / "none")
    assert main(["trajectories", "export", none, "--to", "atif", "--out", str(out)]) == 2
    assert "has no trajectories" in capsys.readouterr().err


@pytest.mark.parametrize("nodes", [[0, 9], [0, 0], [2, 1], [-3, 3]])
def test_nodes_that_the_trace_has_not(path: Path, nodes: list[int]) -> None:
    path.write_text(path.read_text().replace("[0, 3]", json.dumps(nodes)))
    with pytest.raises(ConfigError, match="of a trace of 3"):
        to_atif(load(path), tokens=True)


def test_a_trace_outside_of_the_folder_is_not_read(path: Path) -> None:
    (path.parent / "traces" / "t1.jsonl").rename(path.parent.parent / "t1.jsonl")
    path.write_text(path.read_text().replace('"traces/t1.jsonl"', '"../t1.jsonl"'))
    with pytest.raises(ConfigError, match="outside of the run's folder"):
        to_atif(load(path), tokens=True)


def test_two_episodes_of_one_name_are_not_written_over_each_other(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "run" / "e.jsonl"
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    out = tmp_path / "out"
    flags = ["--to", "atif", "--out", str(out)]
    assert main(["trajectories", "export", str(path), str(other), *flags]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert str(other) in said
    assert not out.exists()
    again = tmp_path / "run" / ".." / "e.jsonl"  # the same one is no second
    assert main(["trajectories", "export", str(path), str(again), *flags]) == 0
    assert "1 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"type": "step", "t": ', '"type": "step", "t": 1e300, "was": ', "no time: 1e+300"),
        ('"type": "start", "t": ', '"type": "start", "t": NaN, "was": ', "no time: nan"),
        (
            '"task": "titanic"',
            '"task": "titanic", "settings": {"x": NaN}',
            "cannot be written as ATIF",
        ),
    ],
)
def test_numbers_that_no_document_can_hold(
    path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path.write_text(path.read_text().replace(old, new))
    flags = ["--to", "atif", "--out", str(path.parent / "out")]
    assert main(["trajectories", "export", str(path), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}")
    assert said in error
