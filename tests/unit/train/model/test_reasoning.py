"""Reasoning in demonstrations and in episodes for training, with templates that keep it and that drop it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from renderers import DefaultRendererConfig, Qwen3RendererConfig
from verifiers.v1.clients.client import resolve_client
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.graph import prepare_turn
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.types import SystemMessage, UserMessage

from air.errors import UsageError
from air.testing import ScriptedServer, reasoned, replies
from air.train.config.model_options import SFTConfig, SFTDataConfig
from air.train.loop import metrics
from air.train.loop.rollout import Rollout
from air.train.model.demonstrations import Demonstration, read_examples, tokenize
from air.train.model.policy import Policy
from air.train.model.sft import train_sft

LIKE_QWEN3 = """
{%- set latest = namespace(query=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set latest.query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.index0 > latest.query %}
        {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""A chat template that keeps reasoning only after the last message of the user."""
THINKING = Qwen3RendererConfig(enable_thinking=True)
KEEPING = Qwen3RendererConfig(enable_thinking=True, thinking_retention="all")
TALK = [
    {"role": "user", "content": "Go."},
    reasoned("Hm 1.", "One."),
    {"role": "user", "content": "On."},
    reasoned("Hm 2.", "Two."),
]
FIRST, SECOND = (
    f"<think>\nHm {n}.\n</think>\n\n{n_th}.<|im_end|>" for n, n_th in enumerate(("One", "Two"), 1)
)


def tokenized(policy: Policy, config: Any, talk: Sequence[dict[str, Any]] = TALK) -> Demonstration:
    policy.renderer_config = config
    return tokenize(policy.renderer(), policy.tokenizer, talk)


def texts(policy: Policy, demonstration: Demonstration) -> list[tuple[str, str]]:
    """The context and the trained text of each example."""
    found = []
    for example in demonstration.examples:
        pairs = list(zip(example.token_ids, example.mask, strict=True))
        context, trained = ([t for t, m in pairs if m is part] for part in (False, True))
        found.append((policy.tokenizer.decode(context), policy.tokenizer.decode(trained)))
    return found


@pytest.mark.parametrize("config", [THINKING, DefaultRendererConfig()])
def test_each_reply_is_trained_with_its_own_reasoning_and_without_earlier(
    small: Policy, config: Any
) -> None:
    small.tokenizer.chat_template = LIKE_QWEN3
    found = tokenized(small, config)
    (_, first), (context, second) = texts(small, found)
    assert (first, second) == (FIRST, SECOND)
    assert "One.<|im_end|>" in context
    assert "Hm" not in context
    assert (found.reasoned, found.left_out) == (2, 0)


def test_a_renderer_that_keeps_reasoning_makes_one_example(small: Policy) -> None:
    ((context, trained),) = texts(small, tokenized(small, KEEPING))
    assert trained == FIRST + SECOND
    assert context.count("<|im_start|>") == 4


def test_a_reply_without_reasoning_has_the_same_tokens_as_before(small: Policy) -> None:
    talk = [TALK[0], {"role": "assistant", "content": "One.", "reasoning_content": None}]
    found = tokenized(small, THINKING, talk)
    assert [trained for _, trained in texts(small, found)] == ["One.<|im_end|>"]
    assert (found.reasoned, found.left_out) == (0, 0)


@pytest.mark.parametrize("config", [None, DefaultRendererConfig()])
def test_reasoning_that_the_template_leaves_out_is_counted_in_one_line(
    small: Policy, config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The template of `small` ignores the field; that of Qwen3 without thinking closes the block first."""
    ((_, trained),) = texts(small, tokenized(small, config))
    assert trained == "One.<|im_end|>Two.<|im_end|>"
    settings = SFTConfig(max_steps=1, data=SFTDataConfig(batch_size=1, seq_len=200))
    talks = [TALK, [*TALK[:3], {"role": "assistant", "content": "Two."}]]
    with caplog.at_level(logging.WARNING, logger="air"):
        found = train_sft(small, talks, settings)
    assert (found["demonstrations"], found["reasoning_left_out"]) == (2, 3)
    (record,) = [r for r in caplog.records if r.name.startswith("air")]
    assert "reasoning of 3 of 3 replies is not trained" in record.message
    assert ("enable_thinking = true" in record.message) == (config is None)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ('{"role": "assistant", "content": "x", "reasoning_content": ["y"]}', "reasoning_content"),
        ('{"role": "assistant", "content": ["x"]}', "`content` must be text"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, reply: str, words: str) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "P"}, ' + reply + "]}\n")
    with pytest.raises(UsageError, match=rf"demos\.jsonl:1: not a demonstration.*{words}"):
        read_examples(path)


@pytest.mark.parametrize(
    ("config", "branches"), [(KEEPING, 1), (THINKING, 3), (DefaultRendererConfig(), 3)]
)
async def test_dropped_reasoning_makes_branches_that_are_counted(
    small: Policy, config: Any, branches: int, tmp_path: Path
) -> None:
    """Each branch is the exact prompt and reply of a request, and each reply is trained once. The default
    renderer is that of a family which `renderers` does not know: it uses the model's own template."""
    small.tokenizer.chat_template = LIKE_QWEN3
    small.tokenizer.save_pretrained(tmp_path / "templated")
    trace: Any = vf.Trace(
        task=TraceTask(type="Task", data=vf.TaskData(idx=0, prompt="")),
        agent=AgentInfo(config=vf.AgentConfig()),
    )
    talk: list[Any] = [SystemMessage(content="Act."), UserMessage(content="Go.")]
    seen: list[list[int]] = []
    script = replies(*(reasoned(f"Hm {n}.", f"Reply {n}.") for n in range(3)))
    with ScriptedServer(script, small.tokenizer) as server:
        client = resolve_client(
            vf.TrainClientConfig(
                base_url=server.url,
                renderer=config,
                renderer_model_name=str(tmp_path / "templated"),
            )
        )
        try:
            for _ in range(3):
                turn = prepare_turn(trace, talk)
                response = await client.get_response(
                    ChatDialect(), {"model": "m"}, vf.SamplingConfig(), "session", turn
                )
                seen.append([*response.tokens.prompt_ids, *response.tokens.completion_ids])
                turn.commit(response)
                talk += [response.message, UserMessage(content="On.")]
        finally:
            await client.close()
    assert [(m.reasoning_content or "").strip() for m in talk if m.role == "assistant"] == [
        "Hm 0.",
        "Hm 1.",
        "Hm 2.",
    ]
    assert trace.num_branches == branches
    assert [branch.token_ids for branch in trace.branches] == (seen if branches > 1 else seen[-1:])
    assert sum(sum(node.mask) for node in trace.nodes) == sum(
        len(small.tokenizer.encode(f"<think>\nHm {n}.\n</think>\n\nReply {n}.")) + 1
        for n in range(3)
    )
    rollout = Rollout("s", "t", [trace])
    assert metrics.reasoning_branches([rollout]) == (branches > 1)


def test_branches_are_said_once_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"step": n, "reasoning_branches": count} for n, count in enumerate((0, 4, 3), 1)]
    for number, row in enumerate(rows):
        metrics.warn_of_branches(row, rows[:number])
    (record,) = caplog.records
    assert record.message.startswith("4 episodes of step 2 became several training samples")
