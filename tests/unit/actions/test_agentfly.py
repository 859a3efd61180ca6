"""The formats of AgentFly's agents read replies as its agents do, and answers in words beside tools."""

from __future__ import annotations

import re
from typing import Any

import pytest

from air.actions import (
    FORMATS,
    NAMES_ELSEWHERE,
    Action,
    FormatError,
    Message,
    MessageCall,
    ToolCall,
    get,
)
from air.actions.agentfly import DONE
from air.actions.search_r1 import SEARCH
from air.errors import ConfigError


def tool(name: str, argument: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}, "seconds": {"type": "integer"}},
        "required": [argument],
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STEP, PYTHON, BASH = tool("step", "action"), tool("code_interpreter", "code"), tool("bash", "cmd")

CALL = '{"name": "code_interpreter", "arguments": {"code": "1"}}'


def called(name: str, **arguments: Any) -> Action:
    return Action(tool=ToolCall(name, arguments=arguments))


@pytest.mark.parametrize(
    ("name", "offered", "reply", "action"),
    [
        ("action", STEP, "<action> go north </action>", called("step", action="go north")),
        ("action", STEP, "<think><action>a</action></think><action>b</action>", called("step", action="b")),
        ("action", STEP, "<action>a</action> I made it. <action>b</action>", called("step", action="a")),
        ("action", STEP, "<action>End Task</action>", Action(answer="End Task")),
        ("action", STEP, "It is over.", Action(answer="It is over.")),
        ("code", PYTHON, "Hm.\n```python\nprint(1)\n```", called("code_interpreter", code="print(1)")),
        ("code", PYTHON, "```json\n{}\n```\n```python\n1\n```", called("code_interpreter", code="1")),
        ("code", PYTHON, "<answer>4</answer>", Action(answer="<answer>4</answer>")),
        ("code", PYTHON, "```python\n1\n```\n```python\n2\n```",
         Action(answer="```python\n1\n```\n```python\n2\n```")),
        ("code", PYTHON, "```python\n1", Action(answer="```python\n1")),
        ("code", PYTHON, "```pythonic\n1\n```", Action(answer="```pythonic\n1\n```")),
        ("bash_swe", BASH, "```bash\nls\n```\nNow:\n```bash\nrm x\n```", called("bash", cmd="ls")),
        ("bash_swe", BASH, "```mswea_bash_command\nls\n```", called("bash", cmd="ls")),
        ("bash_swe", BASH, f"```bash\necho {DONE}\n```",
         Action(tool=ToolCall("bash", arguments={"cmd": f"echo {DONE}"}), ending="submit")),
        ("bash_swe", BASH, "I am done.", Action(answer="I am done.")),
        ("react_input", PYTHON, 'Thought: a\nAction: code_interpreter\nInput: {"code": "1"}\nObservation: 1',
         called("code_interpreter", code="1")),
        ("react_input", PYTHON, "Thought: a\nAnswer: 4", Action(answer="4")),
        ("search_r1", SEARCH, "<search>moon</search>", called("search", query="moon")),
        ("search_r1", SEARCH, "<answer>1969</answer>", Action(answer="1969")),
        ("tool_calls", PYTHON, f"<tool_call>{CALL}</tool_call>", called("code_interpreter", code="1")),
        ("tool_calls", PYTHON, "<think>Hm.</think>\nIt is \\boxed{4}.", Action(answer="It is \\boxed{4}.")),
        ("hermes", PYTHON, "It is 4.", Action(answer="It is 4.")),
        ("think_answer", PYTHON, "<answer>4</answer>", Action(answer="4")),
        ("think_answer", PYTHON, f"<answer>{CALL}</answer>", called("code_interpreter", code="1")),
        ("react", PYTHON, "Action: {1, 2}", Action(answer="{1, 2}")),
    ],
)  # fmt: skip
def test_a_reply_is_read_as_specified(
    name: str, offered: dict[str, Any], reply: str, action: Action
) -> None:
    form = get(name).with_tools([offered], answers=True)
    assert form.parse(reply) == action


@pytest.mark.parametrize(
    ("name", "offered", "reply", "words"),
    [
        ("action", STEP, "<action></action>", "the action is empty"),
        ("action", STEP, "<action>north", "no end"),
        ("action", STEP, "<think>Hm.", "<think> is not closed"),
        ("bash_swe", BASH, "```bash\n```", "the action is empty"),
        ("react_input", PYTHON, "Action: code_interpreter", "no `Input:`"),
        ("react_input", PYTHON, "Action: fly\nInput: {}", "unknown tool 'fly'"),
        ("react_input", PYTHON, "Action: code_interpreter\nInput: {'code': 1}", "not valid JSON"),
        ("react_input", PYTHON, "4", "neither `Action:` nor `Answer:`"),
        ("tool_calls", PYTHON, "<tool_call>{", "not closed"),
        ("tool_calls", PYTHON, "<think>4</think>", "nothing follows"),
        ("hermes", PYTHON, " ", "the reply is empty"),
        ("think_answer", PYTHON, '<answer>{"name": "fly"', "not closed"),
        ("think_answer", PYTHON, '<answer>{"name": "fly"}</answer>', "unknown tool"),
    ],
)
def test_a_malformed_reply_is_explained_and_is_no_answer(
    name: str, offered: dict[str, Any], reply: str, words: str
) -> None:
    form = get(name).with_tools([offered], answers=True)
    with pytest.raises(FormatError, match=f"^Format error: .*{words}"):
        form.parse(reply)


@pytest.mark.parametrize("name", ["action", "code", "bash_swe"])
def test_one_tool_with_one_text_is_needed(name: str) -> None:
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for tools in ([PYTHON, BASH], [{"name": "count", "parameters": number}], [{"name": "look"}]):
        with pytest.raises(ConfigError, match=f"{name!r} writes one text"):
            get(name).with_tools(tools)
    told = get(name).with_tools([PYTHON]).instructions
    assert '"code_interpreter"' in told
    assert "final answer" not in told


@pytest.mark.parametrize(
    "name", ["tool_calls", "hermes", "action", "code", "bash_swe", "react_input"]
)
def test_without_an_action_there_is_no_answer_unless_the_world_takes_one(name: str) -> None:
    assert get(name).with_tools([PYTHON], answers=True).instructions.count("nswer")
    with pytest.raises(FormatError, match=r"^Format error: "):
        get(name).with_tools([PYTHON]).parse("It is 4.")


def test_an_answer_in_words_needs_no_tools_in_the_request() -> None:
    form = get("tool_calls").with_tools([], answers=True)
    assert form.request_tools == ()
    assert form.read(Message("4", reasoning="Hm.")) == Action(answer="4")
    assert get("hermes").with_tools([], answers=True).instructions == form.instructions
    offers = get("tool_calls").with_tools([PYTHON], answers=True)
    call = MessageCall("call_0", "code_interpreter", '{"code": "1"}')
    assert offers.read(Message("", (call,))) == called("code_interpreter", code="1")


@pytest.mark.parametrize("name", [*NAMES_ELSEWHERE, "HF", "SearchR1"])
def test_a_name_of_another_framework_is_told_the_format_here(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        get(name)
    assert f"no action format named {name!r} — use `" in str(error.value)
    _, remedy = str(error.value).split(" — ")
    named = re.findall("`([^`]*)`", remedy)
    assert named
    assert set(named) <= set(FORMATS)
    assert name.lower() not in FORMATS


@pytest.mark.parametrize("name", ["gui", "hermess", "", "React"])
def test_other_names_are_told_all_formats(name: str) -> None:
    with pytest.raises(ConfigError, match=r"use one of: action, bash_swe, .*, or a class as"):
        get(name)
