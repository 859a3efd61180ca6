"""Every action format plays a world in training: one sample, with the tokens that the model sampled."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from renderers import DefaultRendererConfig, Qwen3RendererConfig, create_renderer

from air.actions import FORMATS, Action, ToolCall, get
from air.env.config import ResearchEnvConfig
from air.testing import ScriptedServer, replies
from air.train.loop.metrics import reasoning_branches
from air.train.loop.rollout import Rollout
from air.train.model import policy as policies
from air.trajectories import Trajectory, load
from air.trajectories.conversations import messages
from tests.e2e.worlds.tool_world import TOOLS

LETTERS, DOORS = "air.testing:letters", "tests.e2e.worlds.tool_world:doors"
WORLDS = sorted(name for name, form in FORMATS.items() if not form.scripts)
PLAIN = Qwen3RendererConfig(enable_thinking=False)
THINKING = Qwen3RendererConfig(enable_thinking=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model whose tokenizer has the tokens of Qwen's chat format."""
    texts = ["Write the letter. <answer>aeiou</answer> Thought: Action: tool_call name arguments"]
    return policies.build(
        tmp_path_factory.mktemp("model") / "m", texts, hidden=32, layers=1, heads=2, vocab=320
    )


@asynccontextmanager
async def trained(
    script: Sequence[str], model: Path, task: str, name: str, folder: Path, renderer: Any = PLAIN
) -> AsyncIterator[tuple[vf.Trace[Any, Any, Any], Trajectory]]:
    """Plays one episode as training does: the client sends token ids, and the server samples `script`."""
    agent = {"harness": {"id": "air", "format": name}, "runtime": {"type": "docker"}}
    config = ResearchEnvConfig.model_validate(
        {"taskset": {"id": "air", "tasks": [task]}, "agent": agent, "record_dir": folder}
    )
    env = vf.load_environment(config)
    with ScriptedServer(replies(*script), tokenizer(model)) as server:
        client = vf.TrainClientConfig(
            base_url=server.url,
            api_key_var="AIR_TEST_KEY",
            renderer=renderer,
            renderer_model_name=str(model),
        )
        ctx = vf.ModelContext(model=str(model), client=client)
        async with env.serving():
            episode = await env.run_slot(env.slots(next(iter(env.taskset)))[0], ctx)
    assert episode.ok, episode.traces[0].errors
    yield episode.traces[0], load(only(folder))


def only(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def sampled(trace: Any, model: Path) -> list[str]:
    """The texts that the model sampled, in order."""
    decode = tokenizer(model).decode
    nodes = [node for node in trace.nodes if node.sampled]
    return [
        decode([t for t, own in zip(node.token_ids, node.mask, strict=True) if own])
        for node in nodes
    ]


@pytest.mark.parametrize("name", WORLDS)
async def test_a_world_is_one_sample_in_every_format(
    name: str, model: Path, tmp_path: Path
) -> None:
    good = get(name).render("Hm.", Action(answer="aeiou"))
    said = [good, "<answer>", good]
    async with trained(said, model, LETTERS, name, tmp_path) as (trace, recorded):
        assert sampled(trace, model) == [f"{one}<|im_end|>" for one in said]
        assert trace.num_branches == 1
        assert [step.problem for step in recorded.steps] == ["", "format", ""]
        assert [step.reward for step in recorded.steps] == [1.0, None, 1.0]
        assert recorded.steps[1].shown.startswith("Format error: ")


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WAIT, FIRST, SECOND = (
    call("wait", "{}"),
    call("open_door", '{"number": 1}'),
    call("open_door", '{"number": 2}'),
)
THOUGHT = "<think>\nHm.\n</think>\n\n"


@pytest.mark.parametrize("renderer", [PLAIN, THINKING], ids=["plain", "reasoning"])
async def test_native_tool_calls_are_one_sample(renderer: Any, model: Path, tmp_path: Path) -> None:
    """The template writes the tools into the prompt, and what a tool tells as a message of its own."""
    thought = THOUGHT if renderer is THINKING else "I wait. "
    said = [
        f"{thought}{WAIT}",
        f"{thought}{FIRST}",
        f"{thought}{FIRST}{WAIT}",
        f"{thought}{SECOND}",
    ]
    async with trained(said, model, DOORS, "tool_calls", tmp_path, renderer) as (trace, recorded):
        assert sampled(trace, model) == [f"{one}<|im_end|>" for one in said]
        assert trace.num_branches == 1
    (branch,) = trace.branches
    text = tokenizer(model).decode(branch.token_ids)
    begin = "<|im_start|>assistant\n" + ("" if renderer is THINKING else "<think>\n\n</think>\n\n")
    told = "wait: nothing.\n[4 turns left]"
    answer = f"<|im_start|>user\n<tool_response>\n{told}\n</tool_response><|im_end|>\n"
    first = f"{said[0]}<|im_end|>\n{answer}{begin}"
    assert first in text
    assert text.index('"open_door"') < text.index("Get out.") < text.index(first)
    steps = recorded.steps
    assert [step.problem for step in steps] == ["", "", "format", ""]
    assert [step.reward for step in steps] == [0, 0, None, 1]
    assert [len(step.tool_calls) for step in steps] == [1, 1, 2, 1]
    assert "2 tool calls found. Make exactly one." in steps[2].shown
    assert steps[0].reasoning == ("Hm." if renderer is THINKING else None)
    assert steps[3].call is not None
    assert steps[3].call.tool is not None
    assert steps[3].call.tool.arguments == {"number": 2}
    assert recorded.start is not None
    assert [tool["function"]["name"] for tool in recorded.start.tools] == ["open_door", "wait"]


@pytest.mark.parametrize(
    ("name", "said", "task"),
    [
        ("tool_calls", [WAIT, FIRST, SECOND], DOORS),
        ("think_answer", [WAIT, "<answer>a</answer>", "<answer>e</answer>"], LETTERS),
    ],
)
async def test_the_recorded_conversation_is_what_was_sampled(
    name: str, said: list[str], task: str, model: Path, tmp_path: Path
) -> None:
    """Rendered again from the trajectory, it has the tokens of the sample, also with calls that the format
    does not read."""
    async with trained(said, model, task, name, tmp_path) as (trace, recorded):
        assert len(recorded.steps[0].tool_calls) == 1
    assert recorded.start is not None
    renderer = policies.load(model).renderer()
    again = renderer.render_ids(
        messages(only(tmp_path)), tools=[dict(one) for one in recorded.start.tools]
    )
    (branch,) = trace.branches
    assert again[: len(branch.token_ids)] == branch.token_ids
    assert tokenizer(model).decode(again[len(branch.token_ids) :]) == "\n"


XML_TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\nTools:\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
    {%- if message.role == 'tool' %}
        {{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}{{- message.content or '' }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for name, value in call.function.arguments.items() %}
            {{- '<parameter=' + name + '>\\n' }}
            {{- value if value is string else value | tojson }}
            {{- '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""A chat template that writes calls as XML, in the style of Qwen3-Coder: each argument is text in a tag."""
XML = DefaultRendererConfig(tool_parser="qwen3.5")


@pytest.fixture(scope="module")
def xml_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with the chat template `XML_TEMPLATE`."""
    folder = tmp_path_factory.mktemp("xml") / "m"
    shutil.copytree(model, folder)
    changed = tokenizer(folder)
    changed.chat_template = XML_TEMPLATE
    changed.save_pretrained(folder)
    return folder


def xml(name: str, **arguments: str) -> str:
    parameters = "".join(
        f"<parameter={argument}>\n{value}\n</parameter>\n" for argument, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


async def test_calls_in_xml_are_one_sample(xml_model: Path, tmp_path: Path) -> None:
    """Two calls, and an argument of the wrong type, are explained."""
    said = [
        f"I wait. {xml('wait')}",
        xml("open_door", number="1") + xml("wait"),
        xml("open_door", number="first"),
        xml("open_door", number="2"),
    ]
    async with trained(said, xml_model, DOORS, "tool_calls", tmp_path, XML) as (trace, recorded):
        assert sampled(trace, xml_model) == [f"{one}<|im_end|>" for one in said]
        assert trace.num_branches == 1
    (branch,) = trace.branches
    text = tokenizer(xml_model).decode(branch.token_ids)
    answer = "<|im_start|>user\n<tool_response>\nwait: nothing.\n[4 turns left]\n</tool_response>"
    assert f"{said[0]}<|im_end|>\n{answer}<|im_end|>\n<|im_start|>assistant\n" in text
    steps = recorded.steps
    assert [step.problem for step in steps] == ["", "format", "format", ""]
    assert [step.reward for step in steps] == [0, None, None, 1]
    assert "2 tool calls found. Make exactly one." in steps[1].shown
    assert "number must be of type integer, not string" in steps[2].shown
    assert steps[3].call is not None
    assert steps[3].call.tool is not None
    assert steps[3].call.tool.arguments == {"number": 2}
    assert recorded.start is not None
    tools = [dict(one) for one in recorded.start.tools]
    again = create_renderer(tokenizer(xml_model), XML).render_ids(
        messages(only(tmp_path)), tools=tools
    )
    assert again[: len(branch.token_ids)] == branch.token_ids


@pytest.mark.parametrize("answer", ["aeiou", "7", "-1.5", "true", "null", '{"a": [1, "é"]}'])
async def test_an_answer_in_xml_is_a_text_whatever_it_looks_like(
    answer: str, xml_model: Path, tmp_path: Path
) -> None:
    """The parser decodes arguments as JSON without their schema; the world gets the text that was written."""
    said = [xml("act", action=answer)]
    async with trained(said, xml_model, LETTERS, "tool_calls", tmp_path, XML) as (trace, recorded):
        assert trace.num_branches == 1
    assert [step.problem for step in recorded.steps] == [""] * 3
    assert [step.call and step.call.answer for step in recorded.steps] == [answer] * 3


@pytest.mark.parametrize(
    "said",
    [
        "<tool_call>\n<function=",
        "<tool_call>\n<parameter=number>\n2\n</parameter>\n</tool_call>",
        xml("run"),
        "Go.",
    ],
)
async def test_a_call_in_xml_that_cannot_be_read_is_explained(
    said: str, xml_model: Path, tmp_path: Path
) -> None:
    script = [said, xml("open_door", number="2")]
    async with trained(script, xml_model, DOORS, "tool_calls", tmp_path, XML) as (trace, recorded):
        assert sampled(trace, xml_model) == [f"{one}<|im_end|>" for one in script]
    assert [step.problem for step in recorded.steps] == ["format", ""]
    assert "open_door, wait" in recorded.steps[0].shown


@pytest.mark.parametrize(
    "said", ["<tool_call>\n{", '<tool_call>\n{"name"\n</tool_call>', call("run", "{}")]
)
async def test_a_call_that_the_server_cannot_read_is_explained(
    said: str, model: Path, tmp_path: Path
) -> None:
    async with trained([said, SECOND], model, DOORS, "tool_calls", tmp_path) as (trace, recorded):
        assert sampled(trace, model)[0].startswith(said)
        assert trace.num_branches == 1
    assert [step.problem for step in recorded.steps] == ["format", ""]
    assert "open_door, wait" in recorded.steps[0].shown


async def test_a_break_by_dropped_reasoning_is_counted(model: Path, tmp_path: Path) -> None:
    """The feedback on a reply without a call is a user's message, after which Qwen3 drops reasoning."""
    said = [f"{THOUGHT}I do nothing.", f"{THOUGHT}{SECOND}"]
    async with trained(said, model, DOORS, "tool_calls", tmp_path, THINKING) as (trace, _):
        assert trace.num_branches == 2
        assert reasoning_branches([Rollout("s", "t", [trace])]) == 1
        assert sampled(trace, model) == [f"{one}<|im_end|>" for one in said]


@pytest.mark.parametrize("name", ["think_answer", "react", "code_block", "hermes"])
async def test_tools_are_called_in_text_formats(name: str, model: Path, tmp_path: Path) -> None:
    form = get(name).with_tools(TOOLS)
    said = [
        form.render("Hm.", Action(tool=ToolCall(tool, arguments=arguments)))
        for tool, arguments in (("wait", {}), ("open_door", {"number": 2}))
    ]
    async with trained(said, model, DOORS, name, tmp_path) as (trace, recorded):
        assert trace.num_branches == 1
    assert [step.reward for step in recorded.steps] == [0, 1]
    assert recorded.start is not None
    assert '"open_door"' in recorded.start.system
    assert not recorded.start.tools


ODD = [
    '<tool_call>\n{"name": 5}\n</tool_call>',
    r'<tool_call>{"name": "\ud800"}</tool_call>',
    f"<tool_call>{'[' * 3000}</tool_call>",
    call("wait", "9" * 5000),
]


@pytest.mark.parametrize("odd", ODD, ids=["number", "half-a-character", "brackets", "digits"])
async def test_a_call_that_no_message_can_contain_is_a_format_error(
    odd: str, model: Path, tmp_path: Path
) -> None:
    said = [odd, FIRST, SECOND]
    async with trained(said, model, DOORS, "tool_calls", tmp_path) as (trace, recorded):
        assert sampled(trace, model) == [f"{one}<|im_end|>" for one in said]
    assert [step.problem for step in recorded.steps] == ["format", "", ""]


ONE_CALL = (
    "{%- for m in messages %}<|im_start|>{{ m.role + '\\n' }}"
    "{%- if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call only') }}{%- endif %}"
    "{{- m.content or '' }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


async def test_a_reply_that_the_chat_template_cannot_express_ends_the_episode(
    model: Path, tmp_path: Path
) -> None:
    """As some models' templates do, this one refuses a message with two tool calls."""
    tokens = tokenizer(model)
    tokens.chat_template = ONE_CALL
    templated, kept = tmp_path / "templated", tmp_path / "kept"
    tokens.save_pretrained(templated)
    said = [WAIT, f"{WAIT}{WAIT}", SECOND]
    renderer = DefaultRendererConfig(tool_parser="qwen3")
    async with trained(said, templated, DOORS, "tool_calls", kept, renderer) as (trace, recorded):
        assert sampled(trace, templated) == [f"{one}<|im_end|>" for one in said[:2]]
        assert trace.info["air"]["why_ended"] == "format"
        assert trace.reward == 0
    assert [step.problem for step in recorded.steps] == ["", "format"]
