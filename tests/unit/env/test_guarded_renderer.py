"""No reply of a model makes the conversion between its tokens and messages fail; an ordinary reply is
converted as without the guard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from renderers import DefaultRendererConfig, Qwen3RendererConfig, create_renderer
from verifiers.v1.clients.train import response_from_generate, serialize_completion

from air.env.chat.guarded_renderer import (
    ConfiguredRenderer,
    GuardedRenderer,
    InexpressibleError,
    guarded,
)
from air.train.model.tokenizer import SMALLEST_VOCAB, build_tokenizer
from air.train.serving.protocol import chat_message

TOOL = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object"}}}
ORDINARY = '<tool_call>\n{"name": "wait", "arguments": {"seconds": 3}}\n</tool_call>'
ONE_CALL = (
    "{%- for m in messages %}<|im_start|>{{ m.role + '\\n' }}"
    "{%- if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call only') }}{%- endif %}"
    "{{- m.content or '' }}{%- for c in m.tool_calls or [] %}"
    "{%- for key, value in c.function.arguments.items() %}{{ key }}{%- endfor %}{%- endfor %}"
    "<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)
NO_TOOLS = (
    "{%- for m in messages %}{%- if m.role == 'tool' %}{{ raise_exception('no tools') }}"
    "{%- endif %}{{ m.content }}{%- endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(["Try it."], SMALLEST_VOCAB, max_length=2**20)


def guard(tokenizer: Any, template: str | None = None) -> GuardedRenderer:
    """A guarded renderer of Qwen3 or, with a chat template, of a model that `renderers` does not know."""
    if template is None:
        inner = create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=False))
        return GuardedRenderer(inner, tokenizer)
    other = build_tokenizer(["Try it."], SMALLEST_VOCAB, max_length=2**20)
    other.chat_template = template
    config = DefaultRendererConfig(tool_parser="qwen3")
    return GuardedRenderer(create_renderer(other, config), other)


def parsed(renderer: GuardedRenderer, tokenizer: Any, text: str) -> Any:
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return renderer.parse_response(ids, tools=[TOOL])


ODD = {
    "number": '{"name": 5}',
    "list": '{"name": [1]}',
    "object": '{"name": {"a": 1}, "arguments": {}}',
    "half-a-character": r'{"name": "\ud800"}',
    "half-in-arguments": r'{"name": "wait", "arguments": "\ud800"}',
    "many-digits": f'{{"name": "wait", "arguments": {"9" * 5000}}}',
    "brackets": "[" * 3000,
    "deep": f'{{"name": "wait", "arguments": {"[" * 850 + "]" * 850}}}',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_an_odd_reply_is_a_message_without_calls(tokenizer: Any, odd: str) -> None:
    reply = parsed(guard(tokenizer), tokenizer, f"Try it.\n<tool_call>\n{odd}\n</tool_call>")
    assert reply.content.startswith("Try it.")
    result = {"content": reply.content, "tool_calls": reply.tool_calls, "finish_reason": "stop"}
    response = response_from_generate(result, "m")
    assert response.message.tool_calls is None
    json.dumps(serialize_completion(response, "m"), ensure_ascii=False).encode()
    assert "tool_calls" not in chat_message(reply)


def test_an_odd_call_takes_no_other_call_away(tokenizer: Any) -> None:
    text = f"Two.\n<tool_call>\n{ODD['number']}\n</tool_call>\n{ORDINARY}"
    calls = parsed(guard(tokenizer), tokenizer, text).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [
        (None, None),
        ("wait", {"seconds": 3}),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Try it.",
        "",
        ORDINARY,
        f"Two.\n{ORDINARY}\n{ORDINARY}",
        '<tool_call>\n{"name": "wait", "arguments": null}\n</tool_call>',
        "<tool_call>\nno JSON\n</tool_call>",
        "<tool_call>\n[]\n</tool_call>",
        "<tool_call>",
        r'<tool_call>{"name": "wait", "arguments": {"command": "\ud800"}}</tool_call>',
        f'<tool_call>{{"name": "wait", "arguments": {"[" * 100 + "]" * 100}}}</tool_call>',
    ],
)
def test_other_replies_are_parsed_as_without_the_guard(tokenizer: Any, text: str) -> None:
    bare = create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=False))
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    assert parsed(guard(tokenizer), tokenizer, text) == bare.parse_response(ids, tools=[TOOL])


def test_it_renders_as_the_wrapped_renderer(tokenizer: Any) -> None:
    bare = create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=False))
    ours = guard(tokenizer)
    talk = [{"role": "user", "content": "Go."}]
    ids = bare.render_ids(talk, add_generation_prompt=True)
    assert ours.render_ids(talk, add_generation_prompt=True) == ids
    assert ours.render(talk, add_generation_prompt=True).token_ids == ids
    reply = [*tokenizer.encode("On."), tokenizer.eos_token_id]
    bridged = [each.bridge_to_next_turn(ids, reply, talk).token_ids for each in (bare, ours)]
    assert bridged[0] == bridged[1]
    assert not ours.is_multimodal
    assert ours.get_stop_token_ids() == bare.get_stop_token_ids()


def talk_with(*calls: str) -> list[Any]:
    """A conversation in which the model calls the tool `wait`, once for each of these arguments."""
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "wait", "arguments": call}}
        for n, call in enumerate(calls)
    ]
    told = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in made]
    reply = {"role": "assistant", "content": "", "tool_calls": made}
    return [{"role": "user", "content": "Go."}, reply, *told]


@pytest.mark.parametrize("calls", [("{}", "{}"), ('["no object"]',)], ids=["two", "a-list"])
def test_what_the_template_cannot_express_is_the_models_fault(
    tokenizer: Any, calls: tuple[str, ...]
) -> None:
    renderer = guard(tokenizer, ONE_CALL)
    assert renderer.render_ids(talk_with("{}"), tools=[TOOL])
    with pytest.raises(InexpressibleError, match="the chat template cannot express this"):
        renderer.render(talk_with(*calls), tools=[TOOL])
    with pytest.raises(InexpressibleError):
        renderer.render_ids(talk_with(*calls), tools=[TOOL])


def test_a_template_without_tools_is_not_the_models_fault(tokenizer: Any) -> None:
    renderer = guard(tokenizer, NO_TOOLS)
    with pytest.raises(Exception, match="no tools") as caught:
        renderer.render(talk_with("{}"), tools=[TOOL])
    assert not isinstance(caught.value, InexpressibleError)


def test_the_client_gets_a_guarded_renderer(tokenizer: Any, tmp_path: Path) -> None:
    config = Qwen3RendererConfig(enable_thinking=False)
    client = vf.TrainClientConfig(base_url="http://localhost/v1", renderer=config)
    ctx = guarded(vf.ModelContext(model="m", client=client))
    sent = type(ctx.client).model_validate_json(ctx.client.model_dump_json())
    renderer = create_renderer(tokenizer, sent.renderer)
    assert isinstance(renderer, ConfiguredRenderer)
    talk = [{"role": "user", "content": "Go."}]
    plain = create_renderer(tokenizer, config)
    assert renderer.render_ids(talk, add_generation_prompt=True) == plain.render_ids(
        talk, add_generation_prompt=True
    )
    assert guarded(ctx) is ctx
    evaluated = replace(ctx, client=vf.EvalClientConfig(base_url="http://localhost/v1"))
    assert guarded(evaluated) is evaluated


def test_keyword_arguments_of_the_chat_template_reach_the_wrapped_renderer(tokenizer: Any) -> None:
    client = vf.TrainClientConfig(base_url="http://localhost/v1", renderer=Qwen3RendererConfig())
    config = guarded(vf.ModelContext(model="m", client=client)).client.renderer
    talk = [{"role": "user", "content": "Go."}]
    for thinks in (False, True):
        ours = create_renderer(tokenizer, config, chat_template_kwargs={"enable_thinking": thinks})
        plain = create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=thinks))
        ids = plain.render_ids(talk, add_generation_prompt=True)
        assert ours.render_ids(talk, add_generation_prompt=True) == ids
    with pytest.raises(ValueError, match="nonsense"):
        create_renderer(tokenizer, config, chat_template_kwargs={"nonsense": 1})
