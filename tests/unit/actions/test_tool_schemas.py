"""Calls of tools are read from JSON and checked by the tools' schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from air.actions import FormatError
from air.actions.tool_schemas import Toolbox
from air.errors import ConfigError

MOVE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Moves.",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "string", "enum": ["north", "south"]},
                "steps": {"type": "integer"},
                "speed": {"type": ["number", "null"]},
                "path": {"type": "array", "items": {"type": "integer"}},
                "how": {"anyOf": [{"type": "boolean"}, {"const": "fast"}]},
                "more": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}},
                    "required": ["a"],
                    "additionalProperties": {"type": "integer"},
                },
            },
            "required": ["to"],
        },
    },
}
BOX = Toolbox([MOVE, {"name": "wait"}])


@pytest.mark.parametrize(
    "arguments",
    [
        {"to": "north"},
        {"to": "south", "steps": 2, "speed": 1.5, "path": [1, 2], "how": True},
        {"to": "south", "speed": None, "path": [], "how": "fast", "more": {"a": "", "b": 3}},
        {"to": "south", "speed": 1, "steps": 2.0},
    ],
)
def test_right_arguments_are_taken_as_they_are(arguments: dict[str, Any]) -> None:
    call = BOX.parse(json.dumps({"name": "move", "arguments": arguments}))
    assert (call.name, call.arguments, call.args) == ("move", arguments, ())
    assert BOX.parse(call.text) == call
    assert BOX.checked("move", json.dumps(arguments)) == call


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "to is missing"),
        ({"to": "west"}, 'to must be one of: "north", "south"'),
        ({"to": "north", "steps": "2"}, "steps must be of type integer, not string"),
        ({"to": "north", "steps": True}, "steps must be of type integer, not boolean"),
        ({"to": "north", "steps": 1.5}, "steps must be of type integer, not number"),
        ({"to": "north", "speed": "x"}, "speed must be of type number or null, not string"),
        ({"to": "north", "path": [1, "a"]}, r"path\[1\] must be of type integer, not string"),
        ({"to": "north", "how": "slow"}, "how must be of type boolean, not string"),
        ({"to": "north", "more": {}}, "more.a is missing"),
        ({"to": "north", "more": {"a": "", "b": ""}}, "more.b must be of type integer"),
        ({"to": "north", "far": 1}, "far is unknown .known: to, steps"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=f"^Format error: wrong arguments of move: {words}"):
        BOX.checked("move", arguments)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the call is empty"),
        ('{"name": "wait", "argum', "the call ends too early"),
        ('{"name": "wait"', "the call ends too early"),
        ("{'name': 'wait'}", "not valid JSON: .* at \"'name'"),
        ("wait()", "not valid JSON: Expecting value at 'wait"),
        ('{"name": "wait"} {}', "not valid JSON: Extra data"),
        ('["wait"]', "must be a JSON object"),
        ("{}", 'needs a "name"'),
        ('{"name": 3}', 'needs a "name"'),
        ('{"name": "wait", "args": {}}', "'args' is unknown in a call"),
        ('{"name": "wait", "arguments": 3}', "arguments of wait must be a JSON object"),
        ('{"name": "wait", "arguments": "x"}', "the arguments of wait is not valid JSON"),
        ('{"name": "run", "arguments": {}}', "unknown tool 'run'. The tools are: move, wait."),
        ('{"name": "wait", "arguments": {"a": NaN}}', "NaN is not a JSON value"),
        ('{"name": "wait", "arguments": {"a": 1e999}}', "a number that is too large"),
        ('{"name": "wait", "arguments": {"a": 9223372036854775808}}', "integer of more than 64 bits"),
        ('{"name": "wait", "arguments": {"a": ' + "9" * 5000 + "}}", "Exceeds the limit"),
        ('{"name": "wait", "arguments": {"a": "\\ud800"}}', "half of a surrogate pair"),
        ('{"name": "wait", "arguments": {"\\ud800": 1}}', "half of a surrogate pair"),
        ('{"name": "wait", "arguments": ' + '{"a": ' * 40 + "1" + "}" * 41, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_malformed_call_is_explained(text: str, words: str) -> None:
    with pytest.raises(FormatError, match=f"^Format error: .*{words}"):
        BOX.parse(text)


def test_a_tool_without_properties_takes_any_arguments() -> None:
    assert BOX.checked("wait", {"a": [1, {"b": None}]}).arguments == {"a": [1, {"b": None}]}
    assert BOX.checked("wait", "").arguments == {}


def test_tools_need_names_of_their_own() -> None:
    nameless: list[list[dict[str, Any]]] = [[{"name": ""}], [{}], [MOVE, MOVE]]
    for tools in nameless:
        with pytest.raises(ConfigError, match="no name of its own"):
            Toolbox(tools)


def test_a_text_that_a_server_decoded_is_a_text_again() -> None:
    """Only if the schema says so, and only for calls that a server parsed."""
    say = Toolbox(
        [
            {
                "name": "say",
                "parameters": {
                    "properties": {
                        "text": {"type": "string"},
                        "times": {"type": "integer"},
                        "any": True,
                    }
                },
            },
            {"name": "wait", "parameters": {"properties": None}},
        ]
    )
    for value, text in ((7, "7"), (True, "true"), (None, "null"), (["é"], '["é"]'), ("7", "7")):
        given = {"text": value, "times": 2, "any": 1}
        call = say.checked("say", given, by_server=True)
        assert call.arguments == {"text": text, "times": 2, "any": 1}
    assert say.checked("wait", "{}", by_server=True).arguments == {}
    with pytest.raises(FormatError, match="text must be of type string"):
        say.checked("say", {"text": 7})
    with pytest.raises(FormatError, match="times must be of type integer"):
        say.checked("say", {"times": "2"}, by_server=True)
