"""Rollouts to test credit with: recorded ones of a real small policy, and hand-made ones.

`python -m tests.rollouts` records them anew: a policy of 0.1 M weights plays titanic in process boxes
through the embedded engine's server, with every term of the reward on, once with replies cut at 32 tokens
and once warm enough for errors of format. One episode of each kind is kept.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

FILE = Path(__file__).parent / "data" / "rollouts.json"
WEIGHTS = {
    "format_penalty": 0.25,
    "validate_penalty": 0.1,
    "time_penalty": 5.0,
    "test_weight": 0.5,
}


def recorded() -> list[Any]:
    """The recorded episodes, each with one trace, as they come off the wire."""
    return [vf.WireEpisode.model_validate(one) for one in json.loads(FILE.read_text())]


def episode(trace: Any) -> Any:
    """A finished episode of one trace."""
    return vf.WireEpisode(task=trace.task, ok=trace.ok, traces=[trace])


def payment(nodes: int, *, ends: bool = True, **terms: float) -> dict[str, Any]:
    """What the ledger notes."""
    return {"nodes": nodes, "ends": ends, "terms": terms}


def made(
    parents: Sequence[int | None],
    said: Sequence[int],
    payments: Sequence[dict[str, Any]],
    *,
    ok: bool = True,
    rng: random.Random | None = None,
    took: Mapping[int, float] | None = None,
    **more: Any,
) -> Any:
    """A trace of this graph of messages in which the nodes `said` are the model's, paid as told.

    Each node has two tokens of scaffold; a reply then has one to four sampled ones. `took` has the seconds
    of the actions in these nodes.
    """
    rng = rng or random.Random(0)
    nodes, calls = [], []
    for index, parent in enumerate(parents):
        drawn = rng.randint(1, 4) if index in said else 0
        role = "assistant" if index in said else "user"
        nodes.append(
            {
                "parent": parent,
                "message": {"role": role, "content": f"message {index}"},
                "sampled": index in said,
                "token_ids": [10 * index + n for n in range(2 + drawn)],
                "mask": [False] * 2 + [True] * drawn,
                "logprobs": [-0.125 * (index + 1)] * drawn,
            }
        )
        if index in said:
            usage = {"prompt_tokens": 5, "completion_tokens": drawn, "total_tokens": 5 + drawn}
            calls.append({"node": index, "finish_reason": "stop", "usage": usage})
    earned: dict[str, float] = {}
    for one in payments:
        for name, value in one["terms"].items():
            earned[name] = earned.get(name, 0.0) + value
    times = [{"node": node, "seconds": seconds} for node, seconds in (took or {}).items()]
    record = {
        "task": {"type": "ResearchTask", "data": {"idx": 0, "prompt": "p"}},
        "agent": {"config": {"model": "m"}},
        "nodes": nodes,
        "calls": calls,
        "rewards": {name: {"score": value} for name, value in earned.items()},
        "metrics": {"validates": float(sum(p["ends"] for p in payments)), "turns": len(said) + 0.0},
        "info": {"air": {"episode": "e", "paid": list(payments), "exec_seconds": times}},
        "is_completed": True,
        "ok": ok,
        "stop_condition": "agent_completed",
        **more,
    }
    return vf.WireTrace.model_validate(record)


def chain(turns: int, payments: Sequence[dict[str, Any]], **more: Any) -> Any:
    """A conversation of one branch: system, then user and reply in turn; reply n is node 2n."""
    count = 1 + 2 * turns
    said = range(2, count, 2)
    return made([None, *range(count - 1)], list(said), payments, **more)


async def record(model: Path) -> str:
    """Plays, and returns the file's text."""
    from air.train.evaluation.play import served
    from air.train.model import policy as policies
    from tests.e2e.conftest import research

    policy = policies.load(model)
    config = research(
        ["titanic"], "subprocess", harness={"tokenizer": str(model)}, max_turns=3, **WEIGHTS
    )
    env = vf.load_environment(config)
    played = []
    for longest, temperature in ((96, 1.0), (32, 1.0), (96, 1.5)):
        async with (
            served(policy, temperature=temperature, max_tokens=longest, max_model_len=1536) as ctx,
            env.serving(),
        ):
            task = next(iter(env.taskset))
            for _ in range(12):
                one = await env.run_slot(env.slots(task)[0], ctx)
                assert one.ok, one.errors or one.traces[0].errors
                played.append(one)
    kinds = {kind(one): one for one in reversed(played)}
    left_out = {"traces": {"__all__": {"nodes": {"__all__": {"is_content"}}}}}
    records = [one.model_dump(mode="json", exclude=left_out) for one in kinds.values()]
    for one in records:  # the agent's config has other keys in each version of verifiers
        one["traces"][0]["agent"] = {"config": {"model": "recorded"}}
    return "[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n"


def kind(one: Any) -> tuple[Any, ...]:
    """What makes an episode different from others: one of each kind is kept."""
    (trace,) = one.traces
    facts = [trace.metrics["validates"], min(1, trace.metrics["format_errors"])]
    return (*facts, trace.info["air"]["why_ended"])


def talks() -> list[list[dict[str, str]]]:
    """Conversations of one to four tries."""
    from tests.e2e.conftest import attempt, talk

    found = []
    for number in range(32):
        method, level, tries = 1 + number % 4, 1 + number // 4 % 4, 1 + number // 3 % 4
        opening, one_try = talk(method, level)[:2], talk(method, level)[2:4]
        ending = {"role": "assistant", "content": attempt(level, method, "submit")}
        found.append([*opening, *one_try * tries, ending])
    return found


if __name__ == "__main__":
    import asyncio
    import tempfile

    from tests.e2e.conftest import warm

    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(asyncio.run(record(warm(Path(folder), talks()))))
