"""The actions in a program's replies."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from verifiers.v1.types import AssistantMessage, ToolCall, ToolMessage, UserMessage

from air.env.episode import Counters
from air.env.program.transcript import Transcript, action


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (json.dumps({"command": "ls"}), "ls"),
        ('{"command": 1}', 'run {"command": 1}'),
        ("not JSON", "run not JSON"),
        ("[" * 100_000, "run " + "[" * 100_000),
        ('{"command":' + "9" * 5000 + "}", 'run {"command":' + "9" * 5000 + "}"),
    ],
)
def test_arguments_of_any_form_have_a_text(arguments: str, shown: str) -> None:
    call = ToolCall(id="1", name="run", arguments=arguments)
    assert action(AssistantMessage(content="", tool_calls=[call])) == shown


def node(message: Any, parent: int | None, *, sampled: bool = False) -> Any:
    return SimpleNamespace(message=message, parent=parent, sampled=sampled)


def test_turns_have_their_reasoning_and_result_in_whichever_branch() -> None:
    """The second request repeats the first reply without its reasoning, so it is another branch."""
    call = ToolCall(id="1", name="bash", arguments='{"command": "ls"}')
    first = AssistantMessage(content="", reasoning_content="Hm.", tool_calls=[call])
    trace: Any = SimpleNamespace(
        nodes=[
            node(UserMessage(content="Task."), None),
            node(first, 0, sampled=True),
            node(first.model_copy(update={"reasoning_content": None}), 0),
            node(ToolMessage(tool_call_id="1", content="a file"), 2),
            node(UserMessage(content="Go on."), 3),
            node(AssistantMessage(content="Done."), 4, sampled=True),
        ],
        num_turns=2,
    )
    written: list[tuple[Any, ...]] = []

    def write(*turn: Any, reasoning: str | None) -> None:
        written.append((*turn, reasoning))

    episode: Any = SimpleNamespace(counters=Counters(), write_step=write)
    transcript = Transcript(episode, trace)
    transcript.write()
    assert written == [("", "ls", None, "a file\nGo on.", "Hm.")]
    transcript.write(all_of_them=True)
    assert written[1:] == [("Done.", None, None, "", None)]
