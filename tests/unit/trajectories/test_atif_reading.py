"""What an agent typed and ran is read from trajectories in ATIF."""

from __future__ import annotations

from typing import Any

import pytest

from air.errors import ConfigError
from air.trajectories.atif.reading import Input, keys, recording
from tests.harbor.recordings import ran, trajectory, typed


def test_keystrokes_are_read_with_the_time_that_the_agent_waited() -> None:
    done: tuple[str, dict[str, Any]] = ("mark_task_complete", {})
    read = recording(trajectory(typed("ls -la\n", 2), typed("C-c"), typed("", 30.5), done), "one")
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
        ("C-c\n", "C-c\n"),
        ("echo C-c\n", "echo C-c\n"),
    ],
)
def test_a_key_is_named_as_tmux_does(text: str, sent: str) -> None:
    assert keys(text) == sent


def test_commands_of_several_tools_are_read_in_their_order() -> None:
    read = recording(
        trajectory(
            ran("echo one"),
            ("execute_bash", {"command": "echo two"}),
            ("shell", {"command": ["echo", "a b"]}),
            ("exec_command", {"cmd": "ls", "workdir": "/a b"}),
            ("bash", {"script": "echo five"}),
        ),
        "one",
    )
    texts = ["echo one", "echo two", "echo 'a b'", "cd '/a b'\nls", "echo five"]
    assert read.inputs == tuple(Input(text, False) for text in texts)
    assert read.gaps == ()


def test_what_cannot_be_replayed_is_counted() -> None:
    edit = ("str_replace_editor", {"command": "view", "path": "/app"})
    answer = ("execute_bash", {"command": "yes", "is_input": "true"})
    document = trajectory(edit, ran("ls"), edit, answer, ran("pwd"))
    document["steps"][-1]["is_copied_context"] = True
    document["continued_trajectory_ref"] = "trajectory.cont-1.json"
    read = recording(document, "one")
    assert read.inputs == (Input("ls", False),)
    assert read.gaps == (
        "calls of execute_bash that cannot be replayed: 1",
        "calls of str_replace_editor that cannot be replayed: 2",
        "calls in the trajectory that this one continues: 1",
        "it continues in trajectory.cont-1.json",
    )


def test_the_digest_is_that_of_the_content() -> None:
    one, two = (recording(trajectory(typed(text)), "one") for text in ("a\n", "b\n"))
    edit = recording(trajectory(typed("a\n"), ("edit", {"path": "a"})), "one")
    assert one.digest == recording(trajectory(typed("a\n")), "two").digest
    assert (
        len({one.digest, two.digest, edit.digest, recording(trajectory(ran("a\n")), "").digest})
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
        ({"steps": [{"source": "agent", "message": "ls"}]}, "one: steps: no tool call contains"),
        ({"steps": [{"source": "user", "tool_calls": [{}]}]}, "one: steps: no tool call contains"),
    ],
)
def test_a_wrong_structure_is_refused_by_its_key(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recording(trajectory(ran("ls"), **changed), "one")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (None, "arguments: must be an object"),
        ({"keystrokes": 1}, "arguments.keystrokes: must be a string"),
        ({"keystrokes": "", "duration": -1}, "arguments.duration: must be a number"),
        ({"keystrokes": "", "duration": float("nan")}, "arguments.duration: must be a number"),
        ({"command": [1]}, "arguments.command: must be a string or a list"),
    ],
)
def test_wrong_arguments_are_refused_by_their_key(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"one: steps\[1\].tool_calls\[0\].{says}"):
        recording(trajectory(("bash", arguments)), "one")
