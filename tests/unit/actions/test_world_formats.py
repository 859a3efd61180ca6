"""Formats of worlds without a shell: where a reply has its action, and the feedback on malformed replies."""

from __future__ import annotations

import pytest

from air.actions import Action, FormatError, Message, MessageCall, Standing, ToolCall, get
from air.actions.search_r1 import SEARCH
from air.errors import ConfigError

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
CALL = '{"name": "look", "arguments": {"at": "box"}}'
LOOKED = Action(tool=ToolCall("look", arguments={"at": "box"}))


@pytest.mark.parametrize(
    ("name", "reply", "answer"),
    [
        ("think_answer", "<think>Up.</think><answer>Up || Down</answer>", "Up || Down"),
        ("think_answer", "<think>\nUp.\n</think>\n<answer>\n Up \n</answer>\n", "Up"),
        ("think_answer", "<answer>a < b</answer> Done.", "a < b"),
        ("think_answer", "begun by the template</think><answer>Up</answer>", "Up"),
        ("react", "Thought: go\nAction: open door", "open door"),
        ("react", "Action: a\nThought: no, wait.\nAction:\nb\nc", "b\nc"),
        ("react", "Thought: go Action: look", "look"),
        ("react_line", "Thought: go\nAction: inventory\n", "inventory"),
        ("react_line", "Thought: go\nAction:\n inventory", "inventory"),
        ("code_block", "It is:\n```python\nx = 1\n\nprint(x)\n```\nDone.", "x = 1\n\nprint(x)"),
        ("code_block", "````\n```\n````", "```"),
        ("search_r1", "<think>I know.</think>\n<answer> Paris </answer>", "Paris"),
        (
            "tool_calls",
            '<tool_call>{"name": "act", "arguments": {"action": "Up"}}</tool_call>',
            "Up",
        ),
        (
            "hermes",
            'Go.\n<tool_call>\n{"name": "act", "arguments": {"action": " a "}}\n</tool_call>',
            " a ",
        ),
    ],
)
def test_the_answer_of_a_reply(name: str, reply: str, answer: str) -> None:
    assert get(name).parse(reply) == Action(answer=answer)


@pytest.mark.parametrize(
    ("name", "reply", "words"),
    [
        ("think_answer", "Up", "no <answer> found"),
        ("think_answer", "", "no <answer> found"),
        ("think_answer", "<think>Up", "<think> is not closed"),
        ("think_answer", "<think>Up</think>", "nothing follows </think>"),
        ("think_answer", "<think>a<think>b</think></think><answer>x</answer>", "<think> is inside another"),
        ("think_answer", "<think>a</think><think>b</think><answer>x</answer>", "2 <think> found"),
        ("think_answer", "<think>a</think>b</think><answer>x</answer>", "2 </think> found"),
        ("think_answer", "<think><answer>a</answer></think><answer>b</answer>", "thought contains <answer>"),
        ("think_answer", "<think>a</think><answer>Up", "<answer> is not closed"),
        ("think_answer", "<answer>a</answer><think>b</think><answer>c</answer>", "<answer> comes before"),
        ("hermes", "<tool_call>{}</tool_call><think>b</think>a", "<tool_call> comes before"),
        pytest.param("code_block", "`" * 10_000, f"a line of {'`' * 80}.", id="a fence of any length"),
        ("think_answer", "<think>a</think>Up</answer>", "</answer> comes without <answer>"),
        ("think_answer", "</answer><answer>Up</answer>", "</answer> comes without <answer>"),
        ("think_answer", "<answer>a</answer><answer>b</answer>", "2 <answer> found"),
        ("think_answer", "<answer>a<answer>b</answer></answer>", "<answer> is inside another <answer>"),
        ("think_answer", "<answer>a</answer></answer>", "2 </answer> found"),
        ("think_answer", "<answer> \n </answer>", "the answer is empty"),
        ("react", "I go north.", "no `Action:` found"),
        ("react", "Thought: go\nAction: ", "the answer is empty"),
        ("react", "Action: go\nObservation: You went.", "`Observation:` follows the action"),
        ("react", "Action: go\n  Thought: and now", "`Thought:` follows the action"),
        ("react_line", "Action: a\nAction: b", "2 `Action:` found"),
        ("react_line", "Action: a\nb", "more follows the action's line"),
        ("react_line", "Action: a\nObservation: b", "`Observation:` follows the action"),
        ("code_block", "x = 1", "no fenced block found"),
        ("code_block", "```\nx = 1", "the block is not closed by a line of ```"),
        ("code_block", "```\na\n```\n```\nb\n```", "2 blocks found"),
        ("code_block", "```\n \n```", "the answer is empty"),
        ("search_r1", "<think>a</think>Paris", "neither <search> nor <answer> found"),
        ("search_r1", "<search>a</search><answer>b</answer>", "both <search> and <answer> found"),
        ("search_r1", "<search>a</search><search>b</search>", "2 <search> found"),
        ("search_r1", "<search>a</search><information>b</information>", "<information> is not yours"),
        ("search_r1", "<search> </search>", "<search> is empty"),
        ("search_r1", "<think><search>a</search></think><answer>b</answer>", "thought contains <search>"),
        ("tool_calls", "Up", "no complete tool call found.*: act"),
        ("tool_calls", "<tool_call>{}", "<tool_call> is not closed"),
        ("tool_calls", "<tool_call>{}</tool_call><tool_call>{}</tool_call>", "2 <tool_call> found"),
        ("tool_calls", '<tool_call>{"name": "act"}</tool_call>', "action is missing"),
        ("hermes", '<tool_call>{"name": "act", "arguments": {"action": ""}}</tool_call>', "action is empty"),
        ("hermes", "<think><tool_call>{}</tool_call></think>", "the thought contains <tool_call>"),
    ],
)  # fmt: skip
def test_the_feedback_on_a_malformed_reply(name: str, reply: str, words: str) -> None:
    form = get(name)
    form = form.with_tools([SEARCH]) if name == "search_r1" else form
    with pytest.raises(FormatError, match=f"^Format error: .*{words}"):
        form.parse(reply)


def test_reasoning_that_the_server_moved_away_is_the_thought() -> None:
    form = get("think_answer")
    assert form.read(Message("<answer>Up</answer>", reasoning="Up.")) == Action(answer="Up")
    with pytest.raises(FormatError, match="the thought contains <answer>"):
        form.read(Message("<answer>Up</answer>", reasoning="I say <answer>Up"))
    with pytest.raises(FormatError, match="no <answer> found"):
        form.read(Message("", reasoning="Up, and the token limit"))


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("think_answer", f"<think>a</think><answer>{CALL}</answer>"),
        ("react", f"Thought: a\nAction: {CALL}"),
        ("react_line", f"Thought: a\nAction: {CALL}"),
        ("code_block", f"a\n```json\n{CALL}\n```"),
        ("tool_calls", f"a\n<tool_call>\n{CALL}\n</tool_call>"),
        ("hermes", f"a\n<tool_call>\n{CALL}\n</tool_call>"),
    ],
)
def test_a_worlds_tool_is_called_in_every_format(name: str, reply: str) -> None:
    form = get(name).with_tools([LOOK])
    assert form.parse(reply) == LOOKED
    assert form.parse(form.render("a", LOOKED)) == LOOKED
    described = bool(form.request_tools) or '"look"' in form.instructions
    assert described
    with pytest.raises(FormatError, match=r"unknown tool 'leave'. The tools are: look"):
        form.parse(reply.replace('"look"', '"leave"'))
    assert get(name).request_tools == get(name).with_tools([]).request_tools


def test_tools_go_into_the_request_or_into_the_prompt() -> None:
    native, text = get("tool_calls").with_tools([LOOK]), get("hermes").with_tools([LOOK])
    names = [[t["function"]["name"] for t in one.request_tools] for one in (native, text)]
    assert names == [["look"], []]
    assert '"look"' not in native.instructions
    assert [tool["function"]["name"] for tool in get("tool_calls").request_tools] == ["act"]
    assert '"act"' in get("hermes").instructions


def test_a_native_call_is_answered_by_tool_messages() -> None:
    form = get("tool_calls").with_tools([LOOK])
    call = MessageCall("call_0", "look", '{"at": "box"}')
    message = Message("I look.", (call,), "Hm.")
    assert form.read(message) == LOOKED
    assert form.observation(message, "A box.") == [
        {"role": "tool", "tool_call_id": "call_0", "content": "A box."}
    ]
    two = Message("", (call, MessageCall("call_1", "look", "{}")))
    with pytest.raises(FormatError, match=r"2 tool calls found. Make exactly one"):
        form.read(two)
    assert [m["tool_call_id"] for m in form.observation(two, "Error")] == ["call_0", "call_1"]
    assert form.observation(Message("no call"), "Error") == [{"role": "user", "content": "Error"}]
    with pytest.raises(FormatError, match="the arguments of look ends too early"):
        form.read(Message("", (MessageCall("call_0", "look", '{"at": "bo'),)))


def test_a_search_is_a_tool_call_and_comes_back_as_information() -> None:
    form = get("search_r1").with_tools([SEARCH])
    reply = "<think>Who?</think>\n<search> first moon landing </search>"
    found = Action(tool=ToolCall("search", arguments={"query": "first moon landing"}))
    assert form.parse(reply) == found
    shown = form.observation(Message(reply), "1969")
    assert shown == [{"role": "user", "content": "<information>1969</information>"}]
    assert form.observation(Message("?"), "Error") == [{"role": "user", "content": "Error"}]
    with pytest.raises(FormatError, match="there is no search here"):
        get("search_r1").parse(reply)
    with pytest.raises(ConfigError, match="'search_r1' cannot call the tool 'look'"):
        form.with_tools([SEARCH, LOOK])


def test_a_format_of_research_tasks_calls_no_tools_of_worlds() -> None:
    assert get("mlgym").with_tools([]) is get("mlgym")
    with pytest.raises(ConfigError, match="'mlgym' cannot call the tools of this world"):
        get("mlgym").with_tools([LOOK])


def test_the_remaining_turns_end_every_observation() -> None:
    for name in ("think_answer", "react", "code_block", "search_r1", "tool_calls", "hermes"):
        assert get(name).footer(Standing(left=3)) == "\n[3 turns left]"
        assert get(name).footer(Standing()) == get(name).opening(Standing(left=3)) == ""
        assert not get(name).scripts
