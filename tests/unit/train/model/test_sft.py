from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from renderers import DefaultRendererConfig

from air import actions
from air.actions import Message as ActionMessage
from air.cli.main import main
from air.errors import MissingError, UsageError
from air.train.config.model_options import AdamWConfig, SFTConfig, SFTDataConfig, SFTValConfig
from air.train.model import policy
from air.train.model.demonstrations import Example, read_examples, tokenize
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy
from air.train.model.sft import evaluate, train_sft
from air.train.serving.sampler import SamplingParams
from tests.unit.train.conftest import conversation, generate


def test_exactly_what_would_be_sampled_is_trained(small: Policy) -> None:
    (example,) = tokenize(small.renderer(), small.tokenizer, conversation(1)).examples
    trained = [t for t, m in zip(example.token_ids, example.mask, strict=True) if m]
    depth = conversation(1)[1]["content"][-2]
    assert small.tokenizer.decode(trained) == (
        f"```run\ntrain --depth {depth}\n```<|im_end|>validate<|im_end|>"
    )
    assert len(example.mask) == len(example.token_ids)


def test_tokens_are_those_of_the_rollout(small: Policy) -> None:
    renderer, encode = small.renderer(), small.tokenizer.encode
    messages = conversation(2)
    stop = renderer.get_stop_token_ids()[0]
    prompt = renderer.render_ids(messages[:2], add_generation_prompt=True)
    reply = [*encode(messages[2]["content"]), stop]
    second = renderer.bridge_to_next_turn(prompt, reply, messages[3:4]).token_ids
    expected = [*second, *encode(messages[4]["content"]), stop]
    (example,) = tokenize(renderer, small.tokenizer, messages).examples
    assert example.token_ids == expected
    # What follows the last reply is not part of a demonstration.
    longer = [*messages, {"role": "user", "content": "bye"}]
    assert tokenize(renderer, small.tokenizer, longer).examples == [example]


def test_what_demonstrations_share_is_read_once(small: Policy) -> None:
    """Two demonstrations with one prompt: the loss is the mean over both, computed here one by one."""
    talks = [conversation(1), [*conversation(1)[:3], *conversation(1)[1:3]]]
    examples = [e for t in talks for e in tokenize(small.renderer(), small.tokenizer, t).examples]
    losses = [
        -token_logprobs(small.model, torch.tensor([e.token_ids])).detach()[0, torch.tensor(e.mask)]
        for e in examples
    ]
    shared = next(
        number
        for number, pair in enumerate(zip(*(e.token_ids for e in examples), strict=False))
        if pair[0] != pair[1]
    )
    size = sum(len(e.token_ids) for e in examples)
    config = SFTConfig(max_steps=1, data=SFTDataConfig(batch_size=1, seq_len=size))
    rows: list[dict[str, float]] = []
    train_sft(small, talks, config, rows.append)
    (row,) = rows
    assert row["loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)
    assert row["shared_tokens"] == shared > 30


def test_the_policy_learns(
    warm: Policy, small: Policy, warm_metrics: list[dict[str, float]]
) -> None:
    renderer = warm.renderer()
    unseen = [
        example
        for n in range(500, 510)
        for example in tokenize(renderer, warm.tokenizer, conversation(n)).examples
    ]
    assert evaluate(warm, unseen) < 0.3 < evaluate(small, unseen)
    assert [m["step"] for m in warm_metrics] == list(range(1, 61))
    assert warm_metrics[0]["lr"] < warm_metrics[10]["lr"] > warm_metrics[-1]["lr"]
    prompt = renderer.render_ids(conversation(0)[:2], add_generation_prompt=True)
    params = SamplingParams(temperature=0, max_tokens=60, stop_token_ids=warm.eos_ids)
    [reply] = generate(warm, [prompt], [params])
    text = warm.tokenizer.decode(reply.token_ids)
    assert re.fullmatch(r"```run\ntrain --depth [123]\n```<\|im_end\|>", text)


def test_held_out_loss_and_cut_examples(small: Policy) -> None:
    seen: list[dict[str, float]] = []
    config = SFTConfig(
        max_steps=3,
        data=SFTDataConfig(batch_size=2, seq_len=40),
        optim=AdamWConfig(lr=1e-3),
        val=SFTValConfig(interval=2, eval_on_start=True, data=SFTDataConfig(seq_len=100)),
    )
    found = train_sft(
        small,
        [conversation(n) for n in range(5)],
        config,
        seen.append,
        held_out=[conversation(9)],
        micro_batch_tokens=64,
    )
    assert ["val_loss" in m for m in seen] == [True, False, True, True]
    assert seen[-1]["val_loss"] < seen[0]["val_loss"]
    assert (found["examples"], found["truncated"], found["step"]) == (5, 5, 3)


def test_a_seed_decides_the_order(folder: Path) -> None:

    def losses(seed: int) -> list[float]:
        seen: list[dict[str, float]] = []
        config = SFTConfig(max_steps=3, data=SFTDataConfig(batch_size=1, seq_len=120, seed=seed))
        train_sft(policy.load(folder), [conversation(n) for n in range(6)], config, seen.append)
        return [m["loss"] for m in seen]

    assert losses(1) == losses(1) != losses(2)


def test_cut() -> None:
    example = Example([1, 2, 3], [False, True, True])
    assert example.cut(2) == Example([1, 2], [False, True])


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text(json.dumps({"messages": conversation(0), "task": "x"}) + "\n\n")
    assert read_examples(path) == [conversation(0)]
    with pytest.raises(MissingError, match=r"data\.name"):
        read_examples(tmp_path / "none.jsonl")


def test_separators_of_unicode_end_no_line(tmp_path: Path) -> None:
    """`to_sft` writes them as they are."""
    talk = [{"role": "assistant", "content": "one\u2028two\u2029\u0085three"}]
    path = tmp_path / "demos.jsonl"
    path.write_text(json.dumps({"messages": talk}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_examples(path) == [talk]


@pytest.mark.parametrize(
    "text", ["{\n", "{", '{"messages": [{"role": "assistant", "content": "x"}]}\n{"messages"']
)
def test_a_line_that_is_not_json_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text(json.dumps({"messages": conversation(0)}) + "\n\n" + text)
    with pytest.raises(UsageError, match=r"demos\.jsonl:[34]: not JSON"):
        read_examples(path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"messages": ' + "[" * 100_000], ids=["list", "line"]
)
def test_a_file_that_is_nested_too_deeply_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "demos.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"demos\.json:1: not JSON"):
        read_examples(path)


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"messages": [{"role": "user", "content": "x"}]}',
        '{"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}',
        '{"messages": [{"role": "assistant", "content": "x"}], "tools": ["look"]}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text(json.dumps({"messages": conversation(0)}) + "\n" + line + "\n")
    with pytest.raises(UsageError, match=r"demos\.jsonl:2: not a demonstration"):
        read_examples(path)


def trajectory(*said: tuple[str, bool | None, str]) -> dict[str, object]:
    """A trajectory in the form of AgentGym's files."""
    talk = [{"from": by, "loss": loss, "value": value} for by, loss, value in said]
    return {"item_id": "textcraft_0", "conversations": talk}


OPENING = (("human", None, "Craft."), ("gpt", False, "OK."), ("human", None, "Goal: craft stick."))
REPLY = ("gpt", True, "Thought:\nI need planks.\n\nAction:\nget 1 planks")


@pytest.mark.parametrize("form", ["lines", "list"])
def test_trajectories_of_agentgym_are_trained_where_their_flags_say_so(
    small: Policy, tmp_path: Path, form: str
) -> None:
    rows = [
        trajectory(*OPENING, REPLY),
        trajectory(*OPENING, ("gpt", None, "no"), ("human", None, "?"), REPLY),
    ]
    path = tmp_path / "textcraft_train.json"
    text = json.dumps(rows, indent=1) if form == "list" else "\n".join(map(json.dumps, rows)) + "\n"
    path.write_text(text)
    talks = read_examples(path)
    assert [message["role"] for message in talks[0]] == ["user", "assistant"] * 2
    for talk in talks:
        (example,) = tokenize(small.renderer(), small.tokenizer, talk).examples
        trained = [t for t, m in zip(example.token_ids, example.mask, strict=True) if m]
        assert small.tokenizer.decode(trained) == f"{REPLY[2]}<|im_end|>"
        assert "OK." in small.tokenizer.decode(example.token_ids)


CLOSES_THOUGHTS = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}
"""
"""A chat template that begins only the reply to come with an empty block of thoughts."""


def test_an_untrained_first_reply_is_rendered_as_in_the_prompt_of_an_episode(
    small: Policy, tmp_path: Path
) -> None:
    small.tokenizer.chat_template = CLOSES_THOUGHTS
    small.renderer_config = DefaultRendererConfig()
    path = tmp_path / "textcraft_train.json"
    path.write_text(json.dumps([trajectory(*OPENING, REPLY)]))
    (talk,) = read_examples(path)
    plain = [{"role": one["role"], "content": one["content"]} for one in talk[:3]]
    prompt = small.renderer().render_ids(plain, add_generation_prompt=True)
    (example,) = tokenize(small.renderer(), small.tokenizer, talk).examples
    assert example.token_ids[: len(prompt)] == prompt
    assert example.mask.index(True) == len(prompt)


def test_a_cloned_reply_is_read_by_the_action_formats() -> None:
    for name in ("react", "react_line"):
        assert actions.get(name).read(ActionMessage(REPLY[2])).answer == "get 1 planks"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ((*OPENING,), "loss of true"),
        ((*OPENING, ("gpt", 1.5, "x")), "`loss` must be"),
        ((("bot", True, "x"),), "not human or gpt"),
        ((("gpt", True, None),), "`value` must be text"),
    ],
)
def test_a_bad_trajectory_is_named(
    tmp_path: Path, said: tuple[tuple[str, bool | None, str], ...], text: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([trajectory(*OPENING, REPLY), trajectory(*said)]))
    with pytest.raises(UsageError, match=rf"bad\.json\[1\]: .*{text}"):
        read_examples(path)


def test_no_demonstrations(small: Policy) -> None:
    with pytest.raises(UsageError, match="no demonstrations"):
        train_sft(small, [], SFTConfig(max_steps=1))


def test_held_out_demonstrations_without_a_reply_are_an_error(small: Policy) -> None:
    config = SFTConfig(max_steps=1, val=SFTValConfig(data=SFTDataConfig(seq_len=2)))
    with pytest.raises(UsageError, match=r"^val\.data\.seq_len: cuts every held-out"):
        train_sft(small, [conversation(0)], config, held_out=[conversation(1)])


def test_the_command_trains_by_a_run_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demos = tmp_path / "demos.jsonl"
    talks = [json.dumps({"messages": conversation(n)}) + "\n" for n in range(2)]
    demos.write_text("".join(talks))
    file = tmp_path / "sft.toml"
    file.write_text(
        f'max_steps = 2\noutput_dir = "{tmp_path}"\n[model]\nname = "{folder}"\n'
        f'[data]\nname = "{demos}"\nbatch_size = 1\nseq_len = 120\n[embedded]\nthreads = 1\n'
    )
    killed = tmp_path / "sft"
    (killed / ".policy").mkdir(parents=True)
    (killed / "model.safetensors").write_bytes(b"half of the weights")
    (killed / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    assert main(["sft", "@", str(file)]) == 0
    assert "2 demonstrations, 2 steps" in capsys.readouterr().out
    assert not [path for path in killed.iterdir() if path.name.startswith(".")]
    rows = [
        json.loads(row) for row in (tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [1, 2]
    before, after = (policy.load(one).model.state_dict() for one in (folder, tmp_path / "sft"))
    assert any(not before[name].equal(after[name]) for name in before)
    assert main(["sft", "@", str(file)]) == 2
    assert "the folder has a policy already" in capsys.readouterr().err
