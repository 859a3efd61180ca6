"""What an agent typed and ran is read from trajectories in ATIF."""

from __future__ import annotations

from typing import Any

import pytest

from air.errors import ConfigError
from air.trajectories.atif.reading import Input, key_codes, read_recording
from tests.harbor.recordings import ran, trajectory, typed


def test_keystrokes_are_read_with_the_time_that_the_agent_waited() -> None:
    done: tuple[str, dict[str, Any]] = ("mark_task_complete", {})
    read = read_recording(
        trajectory(typed("ls -la\n", 2), typed("C-c", 0.1), typed("", 30.5), done), "one"
    )
    assert read.inputs == (
        Input("ls -la\n", True, 2.0),
        Input("\x03", True, 0.1),
        Input("", True, 30.5),
    )
    assert read.gaps == ()


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("C-c", "\x03"),
        ("C-d", "\x04"),
        ("C-Z", "\x1a"),
        ("Enter", "\r"),
        ("M-f", "\x1bf"),
        ("Up", "\x1b[A"),
        ("PageUp", None),
        ("F1", None),
        ("C-M-x", None),
        ("C-c\n", "C-c\n"),
        ("echo C-c\n", "echo C-c\n"),
    ],
)
def test_a_key_is_named_as_tmux_does(text: str, sent: str | None) -> None:
    assert key_codes(text) == sent


def test_commands_of_several_tools_are_read_in_their_order() -> None:
    read = read_recording(
        trajectory(
            ran("echo one"),
            ("execute_bash", {"command": "echo two", "is_input": "false"}),
            ("shell", {"command": ["echo", "a b"]}),
            ("exec_command", {"cmd": "ls", "workdir": "/a b"}),
            ("runCommand", {"command": "ls", "cwd": "/a"}),
            ("Bash", {"script": "echo five"}),
        ),
        "one",
    )
    in_folders = ["(cd '/a b' && {\nls\n})", "(cd /a && {\nls\n})"]
    texts = ["echo one", "echo two", "echo 'a b'", *in_folders, "echo five"]
    assert read.inputs == tuple(Input(text, False) for text in texts)
    assert read.gaps == ()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("execute_editor", {"command": "view"}),
        ("sql_exec", {"command": "select"}),
        ("run", {"command": "ls"}),
        ("bash", None),
        ("bash", {"command": None}),
        ("bash", {"command": [1]}),
        ("bash", {"command": "yes", "is_input": "true"}),
        ("bash", {"command": "echo \ud800"}),
        ("bash", {"command": "echo \0"}),
        ("bash", {"keystrokes": "\udfff\n"}),
        ("bash", {"keystrokes": 1}),
        ("bash", {"keystrokes": "F1"}),
        ("bash", {"keystrokes": "", "duration": -1}),
        ("bash", {"keystrokes": "", "duration": float("nan")}),
        ("bash", {"keystrokes": "", "duration": "1"}),
    ],
)
def test_a_call_that_runs_no_shell_command_is_a_gap(tool: str, arguments: Any) -> None:
    read = read_recording(trajectory((tool, arguments), ran("ls")), "one")
    assert read.inputs == (Input("ls", False),)
    assert read.gaps == (f"calls of {tool} that cannot be replayed: 1",)


def test_a_wait_has_at_most_a_day() -> None:
    calls = [typed("", seconds) for seconds in (10**400, float("inf"))]
    assert [each.seconds for each in read_recording(trajectory(*calls), "one").inputs] == [
        86_400.0
    ] * 2


def test_what_cannot_be_replayed_is_counted() -> None:
    edit = ("str_replace_editor", {"command": "view", "path": "/app"})
    long: tuple[str, dict[str, Any]] = ("x" * 100, {})
    answer = ("execute_bash", {"command": "yes", "is_input": "true"})
    document = trajectory(edit, ran("ls"), edit, answer, long, ran("pwd"))
    document["steps"][-1]["is_copied_context"] = True
    document["steps"].insert(0, {"source": "user", "message": "Go on.", "is_copied_context": True})
    document["subagent_trajectories"] = [{}]
    document["continued_trajectory_ref"] = "trajectory.cont-1.json"
    read = read_recording(document, "one")
    assert read.inputs == (Input("ls", False),)
    assert read.gaps == (
        "calls of execute_bash that cannot be replayed: 1",
        "calls of str_replace_editor that cannot be replayed: 2",
        f"calls of {'x' * 60} that cannot be replayed: 1",
        "steps of the trajectory that this one continues: 2",
        "trajectories of agents that this one started",
        "it continues in trajectory.cont-1.json",
    )


def test_the_digest_is_that_of_the_content() -> None:
    one, two = (read_recording(trajectory(typed(text)), "one") for text in ("a\n", "b\n"))
    edit = read_recording(trajectory(typed("a\n"), ("edit", {"path": "a"})), "one")
    assert one.digest == read_recording(trajectory(typed("a\n")), "two").digest
    assert (
        len(
            {one.digest, two.digest, edit.digest, read_recording(trajectory(ran("a\n")), "").digest}
        )
        == 4
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"steps": None}, "one: steps: must be a list"),
        ({"steps": ["a"]}, r"one: steps\[0\]: must be an object"),
        (
            {"steps": [{"source": "agent", "tool_calls": {}}]},
            r"one: steps\[0\].tool_calls: must be a list",
        ),
    ],
)
def test_a_wrong_structure_is_refused_by_its_key(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_recording(trajectory(ran("ls"), **changed), "one")


def test_a_trajectory_may_contain_no_input() -> None:
    for source in ("agent", "user"):
        steps = [{"source": source, "message": "ls"}]
        assert read_recording(trajectory(steps=steps), "one").inputs == ()
