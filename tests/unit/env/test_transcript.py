"""The actions in a program's replies."""

from __future__ import annotations

import json

import pytest
from verifiers.v1.types import AssistantMessage, ToolCall

from air.env.program.transcript import action


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
